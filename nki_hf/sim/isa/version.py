"""Which NeuronCore generation the running kernel is simulated for."""

from __future__ import annotations

from nki_hf.sim.isa.enums import nc_version
from nki_hf.sim.machine import current_machine

__all__ = ["get_nc_sub_version", "get_nc_version"]


def get_nc_version() -> nc_version:
    """The generation of the chip of the current run; members are ordered (`get_nc_version() >= nc_version.gen3`)."""
    return nc_version(current_machine("nisa.get_nc_version").chip.generation)


def get_nc_sub_version() -> int:
    """The silicon revision within the generation: always 0, the first."""
    current_machine("nisa.get_nc_sub_version")
    return 0
