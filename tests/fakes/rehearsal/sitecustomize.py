"""What every process of a rehearsal does before its own work: let stand-in tensors pass, and leave its log at the end."""

import atexit
import importlib.util
import json
import os
import sys
from collections import Counter

from wrapt import when_imported

HAS_STAND_INS = importlib.util.find_spec("fake_neuron") is not None
"""False in a world whose packages are empty: there is no device tensor that must pass."""
READ_BY_NEURON = ("NEURON_", "NKI_", "TORCH_NEURONX_")


@when_imported("nki_hf.adapters.device")
def _let_stand_ins_pass(device):
    if not HAS_STAND_INS:
        return
    from fake_neuron.tensor import DeviceTensor, XlaTensor

    device.PLAIN_TENSORS = (*device.PLAIN_TENSORS, DeviceTensor, XlaTensor)


@when_imported("fake_neuron.machine")
def _log_at_the_end(module):
    machine = module.MACHINE

    def write():
        entry = {
            "argv": sys.argv,
            "compiled": Counter(record.what for record in machine.compiles),
            "loaded": Counter(record.what for record in machine.loaded),
            "waits": machine.synchronized,
            "compiler_arguments": sorted({record.key[1] for record in machine.compiles if record.what == "trace"}),
            "variables": {name: value for name, value in os.environ.items() if name.startswith(READ_BY_NEURON)},
        }
        with open(os.environ["FAKE_NEURON_LOG"], "a") as file:
            file.write(json.dumps(entry) + "\n")

    atexit.register(write)
