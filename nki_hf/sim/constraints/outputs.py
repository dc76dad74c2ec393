"""What a kernel may return."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from nki_hf.errors import FaultRecord, KernelFault
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.tensor import NkiTensor

__all__ = ["check_outputs"]

_LIMIT = "outputs must be in shared_hbm"
_ADVICE = "Copy it with dma_copy into nl.ndarray(..., buffer=nl.shared_hbm)"


def check_outputs(outputs: Iterable[NkiTensor], *, foreign: bool) -> None:
    """Fault on an output that the caller cannot see: on chip, or in memory private to a core.

    Inputs may be returned: a kernel may write them in place. Kernels written elsewhere get a warning for private HBM,
    because older documentation returns it. Source: release notes of NKI 0.3 (outputs must be shared_hbm).
    """
    for item in outputs:
        buffer = item.storage.buffer
        if buffer.on_chip or (buffer.space != "shared_hbm" and buffer.role != "input" and not foreign):
            raise KernelFault(_record(item))
        if buffer.space != "shared_hbm" and buffer.role != "input":
            warnings.warn(str(KernelFault(_record(item))), SimulatorWarning, stacklevel=2)


def _record(item: NkiTensor) -> FaultRecord:
    """The kernel has returned: the line is that of the tensor's allocation."""
    buffer = item.storage.buffer
    return FaultRecord(
        kind="output", instruction="return", message=f"the kernel returns {item!r}", limit=_LIMIT, advice=_ADVICE,
        operands=(repr(item),), file=buffer.file, line=buffer.line, details={"space": buffer.space},
    )  # fmt: skip
