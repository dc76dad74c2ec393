"""Changes in nki-library's test framework: inputs that a kernel writes in place, and arrays of packed types."""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
from collections.abc import Callable
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import as_dtype
from tools.conformance.packed_arrays import is_packed

__all__ = ["ALIASED", "accept_aliased_inputs", "hand_over_packed_inputs"]

ALIASED = ".must_alias_input"
"""Ends the name of an input that a kernel writes in place."""


def accept_aliased_inputs() -> None:
    """Let a test's output descriptor find an input that is written in place under its plain name too."""
    framework = importlib.import_module("test.utils.unit_test_framework").UnitTestFramework
    original = framework.__init__

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        describe = self.output_tensor_descriptor
        self.output_tensor_descriptor = lambda given: describe(
            {**{name.removesuffix(ALIASED): value for name, value in given.items()}, **given}
        )

    framework.__init__ = initialize


def hand_over_packed_inputs() -> None:
    """Let a test's reference get arrays of packed types as they are: only a type's name tells them from whole numbers there."""
    framework = importlib.import_module("test.utils.unit_test_framework")
    original = framework.torch_ref_wrapper

    def wrapper(reference: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        @functools.wraps(reference)
        def opened(**given: Any) -> Any:
            opened = {name: value.array if isinstance(value, Packed) else value for name, value in given.items()}
            return reference(**opened)

        wrapped = original(opened, *args, **kwargs)

        @functools.wraps(reference)
        def closed(**given: Any) -> Any:
            return wrapped(
                **{
                    name: Packed(value) if isinstance(value, np.ndarray) and is_packed(value) else value
                    for name, value in given.items()
                }
            )

        return closed

    framework.torch_ref_wrapper = wrapper


class Packed:
    """An array of a packed type that no test takes for one of whole numbers, and what it is for a reference.

    Attributes:
      array: the array, whose `dtype` has the name of its type.
    """

    def __init__(self, array: Any) -> None:
        named = type("Named", (np.ndarray,), {"dtype": as_dtype(array.dtype)})
        self.array = array.view(named)
