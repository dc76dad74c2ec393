"""The NKI language on CPU: values, constraints, memory, and a stream of Events. Nothing here knows about time."""

from __future__ import annotations

from nki_hf.sim.options import SimOptions
from nki_hf.sim.run.launch import Kernel, LaunchResult, jit, launch, simulate
from nki_hf.sim.run.program import Program
from nki_hf.sim.sdk import VERSION
from nki_hf.sim.sdk.as_nki import as_nki
from nki_hf.sim.stream.events import Buffer, Event, Region

__version__ = VERSION

__all__ = [
    "Buffer",
    "Event",
    "Kernel",
    "LaunchResult",
    "Program",
    "Region",
    "SimOptions",
    "as_nki",
    "jit",
    "launch",
    "simulate",
]
