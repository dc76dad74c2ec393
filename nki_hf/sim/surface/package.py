"""`nki`: the entry points."""

from __future__ import annotations

from nki_hf.sim.surface.entry import Entry, exact

__all__ = ["NKI"]


NKI: dict[str, Entry] = {
    "jit": exact(
        "(fn=None, platform_target=None, **kwargs)",
        note="platform_target chooses the chip; the other arguments for the compiler have no effect",
    ),
    "simulate": exact("(kernel)"),
}
