"""Which public names of NKI the simulator has, and how far: one dict per namespace, and the page made of them."""

from __future__ import annotations

from nki_hf.sim.surface.collectives import COLLECTIVES
from nki_hf.sim.surface.entry import STATUSES, Entry
from nki_hf.sim.surface.isa import ISA
from nki_hf.sim.surface.language import LANGUAGE
from nki_hf.sim.surface.package import COMPILER, EXPERIMENTAL, KERNEL_BUILDER, NKI, TYPING

__all__ = ["NAMESPACES", "STATUSES", "Entry"]

NAMESPACES: dict[str, dict[str, Entry]] = {
    "nki": NKI,
    "nki.language": LANGUAGE,
    "nki.isa": ISA,
    "nki.collectives": COLLECTIVES,
    "nki.typing": TYPING,
    "nki.compiler": COMPILER,
    "nki.compiler.kernel_builder": KERNEL_BUILDER,
    "nki.experimental": EXPERIMENTAL,
}
"""The lists, by the name under which kernels import them."""
