"""The back end of a decision, which follows from the tensors' device: the only place that picks one."""

from __future__ import annotations

from nki_hf.backends import Backend
from nki_hf.backends.neuron import neuron_backend
from nki_hf.backends.simulator import simulator_backend
from nki_hf.backends.torch_reference import TorchReferenceBackend
from nki_hf.dispatch import Decision

__all__ = ["backend_of"]


def backend_of(decision: Decision) -> Backend:
    """The back end that runs the decision's kernel."""
    if decision.backend == "torch_reference":
        return TorchReferenceBackend()
    if decision.backend == "neuron":
        return neuron_backend()
    return simulator_backend(decision.chip)
