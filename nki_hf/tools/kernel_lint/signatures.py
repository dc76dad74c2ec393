"""Parameters of the language's functions, for calls by position."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from nki_hf.sim import isa, language

__all__ = ["arguments_of"]

_SPACES = {"nisa": isa, "nl": language}


@lru_cache(maxsize=512)
def _parameters(space: str, name: str) -> tuple[str, ...]:
    function = getattr(_SPACES.get(space), name, None)
    if not inspect.isfunction(function):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in inspect.signature(function).parameters.values() if each.kind in kinds)


def arguments_of(space: str, name: str, given: Sequence[Any]) -> dict[str, Any]:
    """What is given by position to `nisa.<name>` or `nl.<name>`, by parameter; `#3` where there is none."""
    names = _parameters(space, name)
    return {names[place] if place < len(names) else f"#{place}": each for place, each in enumerate(given)}
