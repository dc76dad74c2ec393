"""Fake of the xla torch_neuronx (2.9): `trace` and what belongs to it. No `nki_op`, no device `neuron`."""

import pickle

import torch
from fake_neuron.machine import MACHINE, CompileRecord
from fake_neuron.tensor import install_device
from fake_neuron.tracing import Traced, trace

from torch_neuronx import utils

__version__ = "2.9.0.2.15.32035+standin"
__all__ = ["move_trace_to_device", "trace", "utils"]


def move_trace_to_device(traced, core):
    """Keep the weights of a traced model on a core; needed when they are not in the NEFF."""
    if not isinstance(traced, Traced):
        raise TypeError(f"move_trace_to_device takes a traced model, got {type(traced).__name__}")
    traced.core = core


install_device("fakexla")

# The real traced model is a ScriptModule; this one is pickled under the same two calls.
_load, _save = torch.jit.load, torch.jit.save


def _jit_save(module, path, **kwargs):
    if not isinstance(module, Traced):
        return _save(module, path, **kwargs)
    with open(path, "wb") as file:
        return pickle.dump(module, file)


def _jit_load(path, *args, **kwargs):
    try:
        with open(path, "rb") as file:
            traced = pickle.load(file)
    except (EOFError, pickle.UnpicklingError) as error:
        raise RuntimeError(f"PytorchStreamReader failed reading {path}") from error
    MACHINE.loaded.append(CompileRecord("trace", "trace", traced.signature))
    return traced


torch.jit.save, torch.jit.load = _jit_save, _jit_load
