"""trn3: NeuronCore-v4."""

from __future__ import annotations

from nki_hf.chips.chip import Chip
from nki_hf.chips.common import COMMON
from nki_hf.chips.param import Param

__all__ = ["TRN3"]

_ARCH = "nki/guides/architecture/trainium3_arch.rst"

TRN3 = Chip(
    name="trn3",
    generation=4,
    default_lnc=2,
    params={
        **COMMON,
        "sbuf_partition_bytes": Param(262144, "B per partition", f"{_ARCH}: SBUF, 128 x 256 KiB", "documented"),
    },
)
