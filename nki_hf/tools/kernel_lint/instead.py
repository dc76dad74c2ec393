"""What a name of the language became: when it came or went, what stands in its place, and what is spelled alike."""

from __future__ import annotations

import difflib
from types import ModuleType

from nki_hf.sim import isa, language

__all__ = ["GONE", "INSTEAD", "SINCE", "instead"]

_SPACES = {"nl": language, "nisa": isa}

SINCE = {
    "0.4": (
        "nl.abs_max", "nl.abs_min", "nl.prelu", "nl.bypass", "nisa.activate2", "nl.tile_size.psum_bank_fmax",
        "nl.tile_size.psum_bank_fmax_bytes", "nl.tile_size.sbuf_fmax",
    ),
    "0.5": ("nl.float8_e8m0fnu",),
    "0.6": ("nl.fori_loop", "nl.while_loop", "nisa.topk"),
    "0.7": (
        "nisa.scalar_load", "nisa.scalar_store", "nisa.NkiScalar", "nl.NkiScalar", "nl.tiles", "nl.blocks", "nl.alloc_tiles",
        "nl.alloc_blocks", "nl.NkiGrid", "nl.NkiTileGrid", "nl.NkiBlockGrid", "nl.int64", "nl.VirtualRegister",
    ),
}  # fmt: skip
"""First version of a name -> names."""

GONE = {
    "0.3": (
        "nl.arange",
        "nl.mgrid",
        "nl.par_dim",
        "nki.benchmark",
        "nki.profile",
        "nki.baremetal",
        "nki.simulate_kernel",
        "nki.tensor",
    ),
    "0.4": ("nisa.tensor_copy_dynamic_src", "nisa.tensor_copy_dynamic_dst"),
    "0.7": ("nl.dynamic_range",),
}
"""First version without a name -> names."""

INSTEAD = {
    "nl.load": "allocate a tile with nl.ndarray(..., buffer=nl.sbuf) and copy with nisa.dma_copy(dst=tile, src=tensor)",
    "nl.store": "copy with nisa.dma_copy(dst=tensor, src=tile)",
    "nl.arange": "slice tiles (t[0:128, 0:512]) or use nl.ds(start, size)",
    "nl.mgrid": "slice tiles (t[0:128, 0:512]) or use nl.ds(start, size)",
    "nl.par_dim": "the first axis of an on-chip tile is the partition axis",
    "nl.matmul": "nisa.nc_matmul(dst=psum_tile, stationary=..., moving=...)",
    "nl.spmd_dim": "launch with kernel[lnc](...) and ask nl.program_id(0)",
    "nki.benchmark": "nki_hf judge gives simulated times",
    "nki.profile": "nki_hf report gives simulated times",
    "nki.baremetal": "launch the kernel itself",
    "nki.simulate_kernel": "nki.simulate(kernel)(...)",
    "nisa.tensor_copy_dynamic_src": "nisa.tensor_copy with a view moved by scalar_offset",
    "nisa.tensor_copy_dynamic_dst": "nisa.tensor_copy with a view moved by scalar_offset",
    "nl.dynamic_range": "nl.fori_loop",
}
"""Name of the language that is gone -> what stands in its place; sources: migration guides of NKI 0.3, 0.4 and 0.7."""


def instead(name: str, modules: list[ModuleType], full: str = "") -> str:
    """What to do about a name that one of `modules` does not have: what replaces it, where it is, or what is spelled alike.

    Args:
      name: as it stands in the kernel.
      modules: where it was looked for.
      full: with its namespace, e.g. `nl.load`.
    """
    for candidate in (full, f"nl.{name}", f"nisa.{name}", f"nki.{name}"):
        if candidate in INSTEAD:
            gone = next((version for version, names in GONE.items() if candidate in names), "0.3")
            return f"{candidate} is gone since NKI {gone}: {INSTEAD[candidate]}."
        since = next((version for version, names in SINCE.items() if candidate in names), "")
        if since:
            return f"{candidate} came with NKI {since}."
    for short, space in _SPACES.items():
        if space not in modules and hasattr(space, name):
            return f"It is {short}.{name}."
    shorts = {language: "nl", isa: "nisa"}
    close = [
        f"{shorts.get(space, 'nki')}.{item}"
        for space in (*modules, *(s for s in _SPACES.values() if s not in modules))
        for item in difflib.get_close_matches(name, _names(space), 2, 0.6)
    ]
    return f"Did you mean {' or '.join(close[:3])}?" if close else "See docs/nki_surface.md for every name that there is."


def _names(space: ModuleType) -> list[str]:
    """What a kernel may name of a module of the language."""
    return [name for name in dir(space) if not name.startswith("_") and not isinstance(getattr(space, name), ModuleType)]
