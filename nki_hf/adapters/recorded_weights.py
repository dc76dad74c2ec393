"""Attention weights that a model collects: does one up the stack ask for them, and does its own eager count a sink in them?"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import CodeType, FrameType, ModuleType

import torch

try:
    # Where Transformers keeps what its hooks collect; private, so its absence only costs the early sight of it.
    from transformers.utils import output_capturing as _capturing

    _collector = _capturing._active_collector
except (ImportError, AttributeError):
    _capturing, _collector = None, ContextVar("no_collector", default=None)

__all__ = ["sink_outside", "weights_recorded"]

_NAME = "output_attentions"


def weights_recorded() -> bool:
    """True if a model up the stack collects attention weights: through hooks that see our None, or in its own loop.

    A loop is looked for up to the model with hooks: what its callers ask for, they ask of the hooks. While compiling only
    the hooks can be asked, and only since Transformers keeps their state in a compileable variable.
    """
    if torch.compiler.is_compiling():
        # Its `get` may be traced only after a `set` inside the graph: before, it asks a ContextVar.
        collected = _collector.global_var if getattr(_collector, "compiling", False) else None
        return collected is not None and any("attentions" in name for name in collected)
    collected = _collector.get()
    if collected and any("attentions" in name for name in collected):
        return True
    frame: FrameType | None = sys._getframe(2)
    known = _kinds.get
    while frame is not None:
        kind = known(id(frame.f_code))
        if kind is None:
            kind = _look(frame.f_code)
        if kind == _HOOKS:
            return False
        if kind == _ASKED:
            asked = frame.f_locals.get(_NAME)
            if asked is not None:
                return asked is True
        frame = frame.f_back
    return False


_ASKED, _HOOKS = 1, 2
_kinds: dict[int, int] = {}
"""Functions that have a variable of that name, and the one around a model that installs its hooks; 0 for all others. Every
call asks this of its stack. By identity, since the hash of a code object reads all of it."""
_held: dict[int, CodeType] = {}
"""The code objects of `_kinds`, so that no other takes the number of one of them."""


def _look(code: CodeType) -> int:
    if len(_held) >= 4096:
        _kinds.clear()
        _held.clear()
    names = code.co_varnames + code.co_cellvars + code.co_freevars
    kind = _ASKED if _NAME in names else 0
    if "collected_outputs" in names and code.co_filename == getattr(_capturing, "__file__", None):
        kind = _HOOKS
    _held[id(code)] = code
    _kinds[id(code)] = kind
    return kind


@torch.compiler.assume_constant_result
def sink_outside(layer_class: type) -> bool:
    """True if the model's own eager function takes the sink's share off the output, so that its weights sum to 1."""
    own = vars(sys.modules.get(layer_class.__module__, ModuleType("gone"))).get("eager_attention_forward")
    return "logsumexp" in getattr(getattr(own, "__code__", None), "co_names", ())
