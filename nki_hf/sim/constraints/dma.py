"""Rules of the DMA instructions."""

from __future__ import annotations

from nki_hf.sim.constraints.rule import Operands, Violation, rule

_ISA = "nki/api/nki/isa/__init__.py: dma_copy"


@rule("dma_copy", "placement", "HBM and SBUF only", _ISA + "; release notes NKI 0.3 (dma_copy may not touch PSUM)")
def _no_psum(o: Operands) -> Violation:
    for name in ("dst", "src"):
        if o.arguments[name].space == "psum":
            return f"{name} {o.arguments[name].name} is in psum", "Copy it to SBUF with tensor_copy first"
    return None


@rule("dma_copy", "shape", "as many elements in src as in dst", _ISA)
def _same_elements(o: Operands) -> Violation:
    if o.dst.size != o.src.size:
        return f"dst {list(o.dst.shape)} has {o.dst.size:,} elements and src {list(o.src.shape)} {o.src.size:,}"
    return None
