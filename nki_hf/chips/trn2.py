"""trn2: NeuronCore-v3."""

from __future__ import annotations

from nki_hf.chips.chip import Chip
from nki_hf.chips.common import COMMON
from nki_hf.chips.param import Param

__all__ = ["TRN2"]

_ARCH = "nki/guides/architecture/trainium2_arch.rst"

TRN2 = Chip(
    name="trn2",
    generation=3,
    default_lnc=2,
    params={
        **COMMON,
        "sbuf_partition_bytes": Param(229376, "B per partition", f"{_ARCH}: SBUF, 128 x 224 KiB", "documented"),
    },
)
