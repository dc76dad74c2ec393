"""`nki_hf.apply(model)`: switch a model to "nki" and say for each of its parts whether attention reaches it."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any

from nki_hf.adapters.registration import NAME, register

__all__ = ["ApplyReport", "PartRow", "apply", "part_row"]


@dataclass(frozen=True, kw_only=True)
class PartRow:
    """One model class inside a model.

    Attributes:
      part: name of the sub-module, `(model)` for the whole.
      model_class: its class.
      status: `routed` (its attention asks for an implementation and gets "nki"), `unsupported` (its attention does not
        ask) or `no attention` (nothing of its own to route).
      note: why, and what runs instead; empty if routed.
    """

    part: str
    model_class: str
    status: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ApplyReport:
    """What `apply` did.

    Attributes:
      rows: one per `PreTrainedModel` inside the model, the model itself first.
    """

    rows: tuple[PartRow, ...]

    @property
    def complete(self) -> bool:
        """True if no part is unsupported."""
        return all(row.status != "unsupported" for row in self.rows)

    def __str__(self) -> str:
        width = max(len(row.part) for row in self.rows)
        lines = [f"{row.part.ljust(width)}  {row.status:<12}  {row.model_class}  {row.note}".rstrip() for row in self.rows]
        missing = sum(row.status == "unsupported" for row in self.rows)
        lines.append("All parts with attention are routed." if not missing else f"{missing} parts keep their own attention.")
        return "\n".join(lines)


def apply(model: Any) -> ApplyReport:
    """Switch a Transformers model and all its parts to "nki", and report per part what that reaches.

    A model whose constructor refuses the name is built with `attn_implementation="eager"` first and switched here. What
    each layer then runs is `nki_hf.explain()`'s to tell, after a forward pass.

    Args:
      model: a `PreTrainedModel`.

    Raises:
      BackendUnavailable: transformers is missing or too old.
      TypeError: not a Transformers model.
    """
    register()
    from transformers import PreTrainedModel

    from nki_hf.adapters.model_classes import asks_by_its_file

    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model={type(model).__name__} is not a Transformers model: pass a PreTrainedModel.")
    model.set_attn_implementation(NAME)
    parts = [(name, part) for name, part in model.named_modules() if isinstance(part, PreTrainedModel)]
    for _, part in parts:
        # A part that holds a copy of a configuration is missed by the switch above.
        if part.config._attn_implementation != NAME and asks_by_its_file(type(part)):
            part.set_attn_implementation(NAME)
    return ApplyReport(rows=tuple(part_row(name, part, NAME) for name, part in parts))


def part_row(name: str, part: Any, implementation: str) -> PartRow:
    """The row of one `PreTrainedModel` that was switched to an implementation.

    Args:
      name: its name inside the model, empty for the whole.
      part: the model.
      implementation: what its attention is to ask for.
    """
    from nki_hf.adapters.model_classes import asks_by_its_file

    kind = type(part).__name__
    where = name or "(model)"
    attention = _attention_classes(type(part).__module__)
    if not asks_by_its_file(type(part)):
        note = "its attention does not use Transformers' attention interface and keeps its own code"
        return PartRow(part=where, model_class=kind, status="unsupported", note=note)
    if part.config._attn_implementation != implementation:
        note = f"its configuration stays {part.config._attn_implementation!r}"
        return PartRow(part=where, model_class=kind, status="unsupported", note=note)
    if not attention:
        return PartRow(part=where, model_class=kind, status="no attention", note="its file has no attention class")
    return PartRow(part=where, model_class=kind, status="routed")


def _attention_classes(module_name: str) -> list[str]:
    try:
        source = inspect.getsource(sys.modules[module_name])
    except (KeyError, OSError, TypeError):
        return []
    return re.findall(r"^class (\w*Attention\w*)\(", source, re.MULTILINE)
