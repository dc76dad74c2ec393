"""trn1: NeuronCore-v2."""

from __future__ import annotations

from nki_hf.chips.chip import Chip
from nki_hf.chips.common import COMMON
from nki_hf.chips.param import Param

__all__ = ["TRN1"]

_ARCH = "nki/guides/architecture/trainium_inferentia2_arch.rst"

TRN1 = Chip(
    name="trn1",
    generation=2,
    default_lnc=1,
    params={
        **COMMON,
        "sbuf_partition_bytes": Param(196608, "B per partition", f"{_ARCH}: SBUF, 128 x 192 KiB", "documented"),
    },
)
