"""What tensors and operators do by instructions. The language stands above both, so it fills this in when it is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ISSUED", "Issued"]


class Issued:
    """Functions of the language that objects below it call.

    Attributes:
      assign: `tensor[key] = value`, by whichever instruction reaches both memories.
      apply: an operator of `nl` applied to tiles, as a new tile.
      functions: names of `nl`, for advice in messages.
    """

    assign: Callable[[Any, Any], None]
    apply: Callable[..., Any]
    functions: frozenset[str] = frozenset()


ISSUED = Issued()
