"""Which NeuronCore generation kernels are simulated for."""

from __future__ import annotations

from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.isa.enums import nc_version
from nki_hf.sim.options import default_chip

__all__ = ["get_nc_sub_version", "get_nc_version"]


def get_nc_version() -> nc_version:
    """The generation of the chip of the current run; members are ordered (`get_nc_version() >= nc_version.gen3`).

    Outside of a kernel it is that of the chip which a launch would take by default.
    """
    machine = running_machine()
    return nc_version((machine.chip if machine is not None else default_chip()).generation)


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: always 0, the first."""
    return 0
