"""Fake of AWS's nki: `jit`, `language`, `isa`. The version is FAKE_NKI_VERSION (default 0.7.0)."""

import os

from fake_neuron.kernel import FakeKernel, NkiValidationError

__version__ = os.environ.get("FAKE_NKI_VERSION", "0.7.0+standin")
__all__ = ["NkiValidationError", "jit"]


def jit(function=None):
    """Decorator; takes no arguments, as `mode` and `platform_target` are gone."""
    return jit if function is None else FakeKernel(function)
