"""Times that costs are made of: simulated for a shape on each chip, or a user's measured rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nki_hf.chips import get_chip
from nki_hf.chips.measurements import error_range
from nki_hf.problem import Problem
from nki_hf.tools.error_bands import family_of
from nki_hf.tools.latency import attention_us
from nki_hf.tools.measured import cores_and_words, read_rows
from nki_hf.tools.modelled import visible_flops
from nki_hf.tools.progress import Work
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import attention_candidate, attention_kernels, own_kernels, subject

__all__ = ["CallTime", "measured_times", "simulated_times"]


@dataclass(frozen=True, kw_only=True)
class CallTime:
    """The time of one attention call on a chip.

    Attributes:
      what: the shape, or the kernel and its size.
      chip: trn1, trn2 or trn3.
      kernel: which ran.
      lnc: physical cores of one call.
      us: microseconds.
      simulated: False if it was measured.
      tokens: query tokens of a call, over the batch.
      flops: operations on visible keys.
      band: smallest and largest error of simulated times of this family on this chip; None if measured, or not known.
    """

    what: str
    chip: str
    kernel: str
    lnc: int
    us: float
    simulated: bool
    tokens: int
    flops: int
    band: tuple[float, float] | None = None

    @property
    def tflops(self) -> float:
        """TFLOP/s of one call, on visible keys."""
        return self.flops / self.us / 1e6

    @property
    def of_peak(self) -> float:
        """Its share of the 16-bit peak of its cores."""
        return self.tflops / (self.lnc * float(get_chip(self.chip).tensor_peak_tflops))


def simulated_times(
    problem: Problem, chips: Iterable[str], *, what: str, lnc: int | None, window: int | None, work: Work
) -> list[CallTime]:
    """One per chip, of the kernel that dispatch picks.

    Raises:
      UnsupportedProblem: no kernel takes the problem.
    """
    found = []
    for name in chips:
        work.begin(f"simulating on {name}")
        chip = get_chip(name)
        cores = chip.default_lnc if lnc is None else lnc
        kernel = attention_candidate(problem, chip, cores).binding.name
        us = attention_us(problem, chip, cores, window=window, kernel=kernel).us
        band = error_range(family_of(kernel), name)
        found.append(
            CallTime(
                what=what,
                chip=name,
                kernel=kernel,
                lnc=cores,
                us=us,
                simulated=True,
                tokens=problem.batch * problem.seqlen_q,
                flops=visible_flops(problem),
                band=None if band is None else band[:2],
            )
        )
        work.advance()
    return found


def measured_times(path: Path) -> list[CallTime]:
    """One per row of a CSV file as `nki_hf correlate --measured` takes it.

    Raises:
      ValueError: the file or a row means nothing; the message says which.
    """
    found = []
    for row in read_rows(path):
        what = f"{row['kernel']} {row['shape']}"
        if row["kernel"] in attention_kernels():
            try:
                lnc, words = cores_and_words(row)
                problem = problem_of(",".join(words))
            except ValueError as error:
                raise ValueError(f"{row['where']}: {error}") from error
            tokens, flops = problem.batch * problem.seqlen_q, visible_flops(problem)
        elif row["kernel"] in own_kernels():
            known = ", ".join(attention_kernels())
            raise ValueError(f"{row['where']}: kernel={row['kernel']} computes gradients: a cost is that of {known} or a rung.")
        elif row["shape"].isdecimal() and 0 < int(row["shape"]) < 2**31:
            lnc, tokens = 1, int(row["shape"])
            try:
                flops = subject(row["kernel"]).flops(tokens)
            except ValueError as error:
                raise ValueError(f"{row['where']}: {error}") from error
        else:
            raise ValueError(f"{row['where']}: shape={row['shape']!r} is not a size of {row['kernel']}.")
        found.append(
            CallTime(
                what=what,
                chip=row["chip"],
                kernel=row["kernel"],
                lnc=lnc,
                us=float(row["us"]),
                simulated=False,
                tokens=tokens,
                flops=flops,
            )
        )
    return found
