"""Fake of AWS's nki: `jit`, `language`, `isa`. The version is FAKE_NKI_VERSION (default 0.7.0)."""

from fake_neuron.kernel import FakeKernel, NkiValidationError
from fake_neuron.machine import NKI_VERSION

__version__ = NKI_VERSION
__all__ = ["NkiValidationError", "jit"]


def jit(function=None):
    """Decorator; takes no arguments, as `mode` and `platform_target` are gone."""
    return jit if function is None else FakeKernel(function)
