"""Fake of the native torch_neuronx (2.13): the device `neuron`, `nki_op`, and the torch.compile back end `neuron`."""

import inspect
import sys

import torch
from fake_neuron.machine import MACHINE
from fake_neuron.native_ops import nki_op
from fake_neuron.tensor import install_device

from torch_neuronx import utils
from torch_neuronx.dynamo import compile_graph

__version__ = "2.13.3.0+standin"
__all__ = ["current_device", "device_count", "get_fallback_ops", "is_available", "nki_op", "synchronize", "utils"]


def is_available():
    """A device is there."""
    return True


def device_count():
    """One logical core."""
    return 1


def current_device():
    """Index of the logical core in use."""
    return 0


def synchronize(device=None):
    """Wait for the device; logged, so that a test can see whether a timer waited."""
    MACHINE.synchronized += 1


def get_fallback_ops():
    """Ops that ran on the CPU instead of the device: none here."""
    return []


def _is_in_bad_fork():
    return False


def manual_seed_all(seed):
    """Device generators do not exist here."""


def get_amp_supported_dtype():
    """Element types of autocast."""
    return [torch.bfloat16, torch.float16]


install_device("neuron", sys.modules[__name__])
torch._dynamo.register_backend(compile_graph, name="neuron")
assert "trace" not in dict(inspect.getmembers(sys.modules[__name__])), "the native package has no trace"
