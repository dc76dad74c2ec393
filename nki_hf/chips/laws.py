"""Laws of the timing model that can be switched off by name: the constants that carry each, and their values without it.

`nki_hf correlate --without NAME` and the table of docs/correlation.md show what every row does without a law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nki_hf.chips.chip import Chip

__all__ = ["LAWS", "Law", "without"]


@dataclass(frozen=True, kw_only=True)
class Law:
    """One law.

    Attributes:
      text: what it says.
      off: the constants that carry it, with the values that mean its absence; a name stands for that other constant's value.
    """

    text: str
    off: Mapping[str, float | str]


LAWS: Mapping[str, Law] = {
    "exp-from-psum": Law(
        text="table functions that read PSUM and write 16 bits stream slower than one element a cycle",
        off={"scalar_table_psum_cycles": 1.0, "scalar_table_psum_latency_ns": "scalar_table_latency_ns"},
    ),
    "8-bit-output": Law(
        text="Vector writes 8-bit results at half the rate of 16-bit ones",
        off={"vector_8bit_output_cycles": "vector_scalar_16bit_cycles"},
    ),
    "psum-overhead": Law(
        text="a Vector instruction with an operand in PSUM costs about 100 cycles beside its elements",
        off={"vector_psum_overhead_cycles": "vector_overhead_cycles"},
    ),
    "dma-transpose": Law(
        text="DMA transposes within SBUF reach a third of the bandwidth, not the half that is documented as the most",
        off={"dma_transpose_sbuf_fraction": 0.5},
    ),
    "software-descriptors": Law(
        text="GpSimd writes the descriptors of gathers and scatters, one after the other",
        off={"dma_software_descriptor_ns": 0.0},
    ),
    "packet-size": Law(
        text="DMA rows below 4 KiB move slower, and rows below 2 KiB slower still",
        off={"dma_full_packet_bytes": 0.0, "dma_small_packet_bytes": 0.0},
    ),
    "shared-hbm": Law(
        text="the cores of one launch share one HBM",
        off={"hbm_bytes_per_ns": 1e9},
    ),
    "psum-recompute": Law(
        text="what PSUM cannot hold is computed again where one matmul made it, rather than copied out by Vector",
        off={"psum_recompute": 0.0},
    ),
    "sbuf-holding": Law(
        text="a tile holds SBUF from its first to its last instruction, and what was touched longest ago is spilled",
        off={"sbuf_spill_held": 0.0},
    ),
    "stack-allocator": Law(
        text="where a kernel's documents say that it uses the stack allocator, SBUF tiles have addresses before anything is "
        "reordered",
        off={"stack_allocator": 0.0},
    ),
    "sustained-clock": Law(
        text="dense 16-bit matmuls are clocked down",
        off={"tensor_sustained_fraction": 1.0},
    ),
}
"""By name, in the order of docs/correlation.md."""


def without(chip: Chip, *names: str) -> Chip:
    """The chip as it would be if the laws of these names did not hold.

    Raises:
      ValueError: a name is not known; the message lists those that are.
    """
    params = dict(chip.params)
    for name in names:
        if name not in LAWS:
            raise ValueError(f"without={name!r} is not a law: it is one of {', '.join(LAWS)}.")
        for constant, value in LAWS[name].off.items():
            params[constant] = replace(
                params[constant],
                value=chip.params[value].value if isinstance(value, str) else value,
                confidence="assumed",
                source=f"without the law {name}",
            )
    return replace(chip, params=params)
