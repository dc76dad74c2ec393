"""`nki_hf serving`: the name that continuous batching takes on this machine, or why none; and the shell line for it."""

from __future__ import annotations

from typing import Annotated

import typer

from nki_hf.adapters.hub_kernel import HUB_NAME, VARIABLE, entry, serving, set_local_kernels

__all__ = ["command"]


def command(
    export: Annotated[
        bool, typer.Option("--export", help=f'Print only the line that sets {VARIABLE}: eval "$(nki_hf serving --export)"')
    ] = False,
) -> None:
    """Say which attn_implementation `generate_batch` and `transformers serve` take here, or why none."""
    environ: dict[str, str] = {}
    set_local_kernels(environ)
    if export:
        if VARIABLE not in environ:
            raise ValueError(f"{entry()!r} cannot be put into {VARIABLE}: it has a colon or an equals sign in its path.")
        print(f"export {VARIABLE}=${{{VARIABLE}:+${VARIABLE}:}}'{environ[VARIABLE]}'")
        return
    found = serving()
    if found.name is None:
        print(f"continuous batching: no\n{found.problem}")
        raise SystemExit(1)
    print(f'continuous batching: attn_implementation="{found.name}"')
    if found.name == HUB_NAME:
        print(
            f"python: import nki_hf, then model.generate_batch(...)\n"
            f'shell:  eval "$(nki_hf serving --export)" && transformers serve MODEL --continuous-batching '
            f"--attn-implementation {HUB_NAME}"
        )
    else:
        print("python: import nki_hf, then model.generate_batch(...)")
