"""The kernels of the package: one line each. Everything that lists, finds or loads a kernel asks here."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection

from nki_hf.kernels.binding import Binding

__all__ = ["PACKAGES", "binding", "binding_of", "bindings", "find"]

PACKAGES = [
    "nki_hf.kernels.flash_prefill",
    "nki_hf.kernels.flash_const_max",
    "nki_hf.kernels.flash_backward",
    "nki_hf.kernels.flash_decode",
]
"""The kernels' folders as dotted names. Of kernels whose costs are equal the earlier one runs."""


def bindings(kind: str | None = None) -> tuple[Binding, ...]:
    """The bindings of all kernels, or those of one kind."""
    found = tuple(_load(package) for package in PACKAGES)
    return found if kind is None else tuple(item for item in found if item.kind == kind)


def binding(name: str) -> Binding:
    """The binding of that name.

    Raises:
      KeyError: there is no such kernel; the message lists those that there are.
    """
    found = find(name)
    if found is None:
        raise KeyError(f"kernel={name!r} is not known: it is one of {', '.join(item.name for item in bindings())}.")
    return found


def find(name: str) -> Binding | None:
    """The binding of that name, or None."""
    return next((item for item in bindings() if item.name == name), None)


def binding_of(name: str, parameters: Collection[str]) -> Binding | None:
    """The binding that a kernel function is called by: the one of its name, else the first whose parameters it has."""
    fitting = [item for item in bindings() if {*(a.name for a in item.arguments), *item.constants} <= set(parameters)]
    return next((item for item in fitting if item.name == name), fitting[0] if fitting else None)


@functools.cache
def _load(package: str) -> Binding:
    found: Binding = importlib.import_module(f"{package}.call").BINDING
    return found
