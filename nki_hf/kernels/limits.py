"""Limits that several kernels have, and the reasons that follow where a problem is beyond them."""

from __future__ import annotations

from nki_hf.chips import Chip
from nki_hf.errors import Reason
from nki_hf.problem import DTYPES, Problem

__all__ = ["ITEMSIZE", "MAX_KEYS", "Refusals", "sbuf_limit"]

MAX_KEYS = 1 << 24
"""Key positions are compared in float32 on the Vector engine, exact below 2^24 (nki.isa.range_select)."""
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}


def sbuf_limit(chip: Chip) -> int:
    """Bytes of a partition of SBUF that a kernel may use."""
    return int(chip.sbuf_partition_bytes - chip.sbuf_reserved_bytes)


class Refusals:
    """The reasons why one kernel cannot take a problem, in the order of the checks; `found` is empty if it can."""

    def __init__(self, kernel: str, problem: Problem) -> None:
        self.kernel, self.problem = kernel, problem
        self.found: list[Reason] = []

    def refuse(self, field: str, value: object, limit: str, advice: str = "") -> None:
        """One reason more."""
        self.found.append(Reason(kernel=self.kernel, field=field, value=str(value), limit=limit, advice=advice))

    def dtype(self, advice: str = "") -> None:
        """Refuse element types other than `DTYPES`."""
        if self.problem.dtype not in DTYPES:
            self.refuse("dtype", self.problem.dtype, f"must be one of {', '.join(DTYPES)}", advice)

    def head_dims(self, most: int) -> None:
        """Refuse heads that are wider than `most`."""
        self._at_most("head_dim", self.problem.head_dim, most)
        self._at_most("head_dim_v", self.problem.head_dim_v, most)

    def _at_most(self, field: str, size: int, most: int) -> None:
        if size > most:
            self.refuse(field, size, f"must be 1 to {most}")

    def keys(self) -> None:
        """Refuse more keys than float32 counts."""
        if self.problem.seqlen_kv > MAX_KEYS:
            limit = f"must be at most {MAX_KEYS:,}: positions are compared in float32"
            self.refuse("seqlen_kv", f"{self.problem.seqlen_kv:,}", limit)

    def scale_and_softcap(self) -> None:
        """Refuse scales and caps of scores that are masked in float32 before they are multiplied."""
        scale, cap = self.problem.scale, self.problem.softcap
        if scale != 0 and not _moderate(scale):
            outside = "must be 0, or 1e-30 to 1e30 in size: beyond, hidden scores are not low enough in float32"
            self.refuse("softmax_scale", scale, outside, "Scale q instead.")
        if cap is not None and not (_moderate(cap) and (scale == 0 or _moderate(scale / cap))):
            outside = "must be 1e-30 to 1e30, and so must softmax_scale / softcap: beyond, float32 loses the scores"
            self.refuse("softcap", cap, outside)

    def sbuf(self, used: int, chip: Chip) -> None:
        """Refuse a plan that takes more of a partition of SBUF than there is."""
        limit = sbuf_limit(chip)
        if used > limit:
            self.refuse("sbuf_bytes", f"{used:,}", f"must be at most {limit:,} per partition on {chip.name}")


def _moderate(number: float) -> bool:
    return 1e-30 <= abs(number) <= 1e30
