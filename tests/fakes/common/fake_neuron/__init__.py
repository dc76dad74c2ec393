"""A stand-in for a Trainium machine: device tensors, the launch contract of nki, and a log of what was compiled.

Kernels run on the simulator; what the real packages are documented to refuse is refused, each refusal a `Refused` with
the name of its rule (see rules.py). Nothing here is a device: times mean nothing, and what is only documented stays so.
"""

from fake_neuron.machine import MACHINE, CompileRecord
from fake_neuron.rules import RULES, Refused, refuse

__all__ = ["MACHINE", "RULES", "CompileRecord", "Refused", "refuse"]
