"""Fake of torch_xla: the device and the barrier."""

import torch
from fake_neuron.tracing import FactoriesOnDevice

__version__ = "2.9.0+standin"

_entered = []


def device():
    """The lazy device. From here on this process can put tensors there, as one with the real package can from its import on."""
    if not _entered:
        _entered.append(FactoriesOnDevice().__enter__())
    return torch.device("xla:0")


def sync():
    """Run what is pending: nothing here."""
