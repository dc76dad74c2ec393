"""Fake of torch_neuronx.utils."""

from fake_neuron.machine import MACHINE


def get_logical_neuron_cores():
    """The LNC as text, as the real function gives it."""
    return str(MACHINE.lnc)


def get_platform_target():
    """The chip."""
    return MACHINE.chip
