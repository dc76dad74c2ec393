"""A guard on the settings, for a compiled graph that runs torch: under other settings it is not used, but traced again.

torch.compile guards on what its tracer reads, and it cannot read a context variable, where the settings of a block are. So the
guard is added by the two calls of torch's own guards (as of torch 2.5 to 2.13); a kernel's op needs none, since it reads the
settings when it runs. `torch.export` and `torch.jit.trace` have no guards: what they saved is what they traced.
"""

from __future__ import annotations

import warnings
from typing import Any

from nki_hf.settings import settings

__all__ = ["keep_to_settings"]


def keep_to_settings() -> None:
    """Bind the graph that torch.compile traces now to the settings in force; nothing where another tracer runs.

    A torch without these calls gets a warning: there the graph keeps running torch under any settings.
    """
    try:
        from torch._dynamo.source import GlobalStateSource
        from torch._guards import Guard, TracingContext

        context = TracingContext.try_get()
        if context is not None:
            context.guards_context.dynamo_guards.add(Guard(GlobalStateSource(), _Guard()))
    except (ImportError, AttributeError, TypeError) as error:
        _warn(error)


class _Guard:
    """What torch calls when it makes the guards of a graph; the settings are those of its tracing."""

    def __init__(self) -> None:
        self.traced = settings()
        self.__code__ = type(self).__call__.__code__  # torch sorts guards by the line of their code

    def __call__(self, builder: Any, guard: Any) -> None:
        text = "nki_hf.settings.settings() == those of the tracing"
        names = {"___nki_hf_settings": settings, "___nki_hf_traced": self.traced}
        try:
            builder.add_python_lambda_leaf_guard_to_root(["___nki_hf_settings() == ___nki_hf_traced"], [text], names)
        except (AttributeError, TypeError) as error:
            _warn(error)


def _warn(error: Exception) -> None:
    warnings.warn(
        f"this torch takes no guard on the settings of nki_hf ({error}): a compiled graph that runs torch for attention now "
        "does so under nki_hf.configure(strict=True) too. Call torch.compiler.reset() when you change settings.",
        stacklevel=3,
    )
