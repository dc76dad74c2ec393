"""`transformers serve` that no request ends and that ctrl-C does: python -m nki_hf.serve MODEL [its options].

Everything is Transformers' own, its options too. Besides: LOCAL_KERNELS leads to this package (adapters/hub_kernel.py), a
request that continuous batching cannot serve gets HTTP 400 with the reason (adapters/checked_batching.py) instead of ending the
worker, and the process ends with its server. By itself it would wait for a thread of continuous batching that nobody ends.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from nki_hf.adapters.checked_batching import checked_batching, model_refusal, refusal
from nki_hf.adapters.hub_kernel import HUB_NAME, serving

__all__ = ["main", "refuse_models", "server_class"]

_PATIENCE = 60
"""Seconds in which the first request's cache has to be there."""
_DEFAULT = 1024
"""New tokens of a request that names none: Transformers' server asks for this many or more."""


def server_class() -> type:
    """Transformers' `Serve`, checking requests; made with `non_blocking=True` it serves in the calling thread until a signal.

    Raises:
      ImportError: Transformers, or a package that its server needs, is missing.
    """
    from transformers.cli.serve import Serve

    class CheckedServe(Serve):  # type: ignore[misc]
        def start_server(self) -> None:
            refuse_models(self)
            _check(self._generation_state)
            self._thread = None  # the server runs in this one, so that it gets the signals
            try:
                self.server.run()
            finally:
                self.kill_server()

    CheckedServe.__doc__ = Serve.__doc__  # the text of --help
    return CheckedServe


def refuse_models(server: Any) -> None:
    """Refuse to serve a model that was loaded at the start and of which no request could be served.

    Raises:
      ValueError: there is one.
    """
    for loaded in getattr(getattr(server, "_model_manager", None), "loaded_models", {}).values():
        problem = model_refusal(loaded.model)
        if problem:
            raise ValueError(problem)


def _check(state: Any) -> None:
    """Let the managers of continuous batching that a server gets from `state` check requests.

    Raises:
      RuntimeError: this Transformers' server is another than the one known here.
    """
    get = getattr(state, "get_manager", None)
    if get is None:
        import transformers

        raise RuntimeError(
            f"transformers={transformers.__version__}: its server keeps its managers elsewhere, so that requests cannot be "
            "checked. Use `transformers serve`, and refuse long requests before it."
        )

    def get_checked(model_id: str, use_cb: bool = False) -> Any:
        manager = get(model_id, use_cb=use_cb)
        return _CheckedManager(manager) if use_cb else manager

    state.get_manager = get_checked


class _CheckedManager:
    """A manager of continuous batching that answers what it cannot serve with HTTP 400, streamed or not."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def init_cb(self, model: Any, gen_config: Any) -> None:
        """Start the worker for a model, which may have been loaded by this request."""
        from fastapi import HTTPException

        problem = model_refusal(model)
        if problem:
            raise HTTPException(status_code=400, detail=problem)
        self._manager._cb_config = checked_batching(self._manager._cb_config)
        self._manager.init_cb(model, gen_config)

    def generate_streaming(self, model: Any, processor: Any, inputs: Any, gen_config: Any, *args: Any, **more: Any) -> Any:
        self._refuse(inputs, gen_config)
        return self._manager.generate_streaming(model, processor, inputs, gen_config, *args, **more)

    async def generate_non_streaming(
        self, model: Any, processor: Any, inputs: Any, gen_config: Any, *args: Any, **more: Any
    ) -> Any:
        self._refuse(inputs, gen_config)
        return await self._manager.generate_non_streaming(model, processor, inputs, gen_config, *args, **more)

    def _refuse(self, inputs: Any, gen_config: Any) -> None:
        from fastapi import HTTPException

        problem = refusal(self._cache(), inputs["input_ids"], gen_config.max_new_tokens)
        if problem and (gen_config.max_new_tokens or 0) >= _DEFAULT:
            problem += (
                f" A request without max_tokens (/v1/responses: max_output_tokens) asks for {_DEFAULT:,} or more; "
                "max_completion_tokens is not read."
            )
        if problem:
            raise HTTPException(status_code=400, detail=problem)

    def _cache(self) -> Any:
        """The paged cache, which the worker makes when the first request has come."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                return self._manager.scheduler.cache
            except RuntimeError:  # "not initialized"
                if not self._manager.is_alive() or time.monotonic() > until:
                    raise
                time.sleep(0.01)


def main(words: list[str] | None = None) -> None:
    """Serve with the options of `transformers serve`, until ctrl-C or SIGTERM."""
    import typer

    from nki_hf.tools.program import finished

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(server_class())
    given = sys.argv[1:] if words is None else words
    code = finished(lambda: _run(app, given))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # answers that nobody waits for any more are still being made


def _run(app: Any, words: list[str]) -> Any:
    """Run the server's command.

    Raises:
      ValueError: what Transformers refuses; of an attention implementation also which name of ours it takes here.
    """
    try:
        return app([*words, "--non-blocking"], prog_name="python -m nki_hf.serve", standalone_mode=False)
    except ValueError as error:
        if "attention implementation" not in str(error).lower():
            raise
        found = serving()
        told = f"Of nki_hf it takes {HUB_NAME!r}"
        if found.name == "nki":
            told += " from Transformers 5.20 on; here generate_batch alone takes 'nki'."
        else:
            told += f", but not here: {found.problem}" if found.problem else "."
        raise ValueError(f"{error} {told}") from error


if __name__ == "__main__":
    main()
