"""`nl.device_print`: look at a tile while the kernel runs."""

from __future__ import annotations

import numpy as np

from nki_hf.sim.execution.current_machine import current_machine
from nki_hf.sim.faults import fault
from nki_hf.sim.tensors.indirect import gather
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["device_print"]


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print the prefix and the tile's values on standard output when execution reaches this point (also in replays)."""
    machine = current_machine("nl.device_print")
    if not isinstance(print_prefix, str):
        fault("argument", "device_print", f"print_prefix={print_prefix!r}", limit="must be a string, before the tensor")
    if not isinstance(tensor, NkiTensor):
        fault("argument", "device_print", f"tensor={tensor!r}", limit="must be a tensor of the kernel")
    if not machine.options.values:
        return
    values, what, core = gather(tensor), repr(tensor), f" core {machine.core}" if machine.run.lnc > 1 else ""

    def action() -> None:
        array = values()
        shown = array if array.dtype.kind in "iub" else array.astype(np.float32)
        print(f"{print_prefix}{core} {what}\n{shown}")

    if machine.pending:  # what it prints may be under way from the other core
        machine.run.cooperation.await_all(machine)
    machine.action(action)
