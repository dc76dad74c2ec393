"""Attention weights that a model collects: does one up the stack ask for them, and does its own eager count a sink in them?"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import CodeType, FrameType, ModuleType

import torch

try:
    # Where Transformers keeps what its hooks collect; private, so its absence only costs the early sight of it.
    from transformers.utils.output_capturing import _active_collector as _collector
except ImportError:
    _collector = ContextVar("no_collector", default=None)

__all__ = ["sink_outside", "weights_recorded"]

_NAME = "output_attentions"


def weights_recorded() -> bool:
    """True if a model up the stack collects attention weights: through hooks that see our None, or in its own loop.

    While compiling only the hooks can be asked, and only since Transformers keeps their state in a compileable variable.
    """
    if torch.compiler.is_compiling():
        # Its `get` may be traced only after a `set` inside the graph: before, it asks a ContextVar.
        collected = _collector.global_var if getattr(_collector, "compiling", False) else None
        return collected is not None and any("attentions" in name for name in collected)
    collected = _collector.get()
    if collected and any("attentions" in name for name in collected):
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        known = _known.get(id(frame.f_code)) or _look(frame.f_code)
        if known[1]:
            asked = frame.f_locals.get(_NAME)
            if asked is not None:
                return asked is True
        frame = frame.f_back
    return False


_known: dict[int, tuple[CodeType, bool]] = {}
"""Whether a function has a variable of that name: every call asks this of the whole stack. By identity, since the hash of a
code object reads all of it; each is held, so that no other takes its number."""


def _look(code: CodeType) -> tuple[CodeType, bool]:
    if len(_known) >= 4096:
        _known.clear()
    found = _known[id(code)] = code, _NAME in code.co_varnames + code.co_cellvars + code.co_freevars
    return found


@torch.compiler.assume_constant_result
def sink_outside(layer_class: type) -> bool:
    """True if the model's own eager function takes the sink's share off the output, so that its weights sum to 1."""
    own = vars(sys.modules.get(layer_class.__module__, ModuleType("gone"))).get("eager_attention_forward")
    return "logsumexp" in getattr(getattr(own, "__code__", None), "co_names", ())
