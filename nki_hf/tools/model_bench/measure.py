"""Times of repeated calls: the first call apart (it compiles or traces), then warm-ups, then the timed iterations."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PeakMemory", "Timing", "measure"]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Times of one attention's calls, in seconds. Every statistic is over `iterations_s` only.

    Attributes:
      first_s: the first call, which also compiles or traces.
      iterations_s: one entry per timed call, none of them the first or a warm-up; the first alone where it took so long that
        no other was made.
      mean_s, median_s, min_s, max_s: of the iterations.
      compile_s: what the first call took beyond the median iteration.
      peak_bytes: the process's peak of resident memory during these calls beyond what it held before; None where the
        system does not tell.
    """

    first_s: float
    iterations_s: tuple[float, ...]
    mean_s: float
    median_s: float
    min_s: float
    max_s: float
    compile_s: float
    peak_bytes: int | None

    @classmethod
    def of(cls, first_s: float, iterations_s: Sequence[float], peak_bytes: int | None = None) -> Timing:
        """The record of these times; `iterations_s` has at least one entry."""
        median = statistics.median(iterations_s)
        return cls(
            first_s=first_s,
            iterations_s=tuple(iterations_s),
            mean_s=statistics.fmean(iterations_s),
            median_s=median,
            min_s=min(iterations_s),
            max_s=max(iterations_s),
            compile_s=max(0.0, first_s - median),
            peak_bytes=peak_bytes,
        )

    def wrong(self) -> str:
        """What no measurement gives (a time that is no positive number, a statistic of other calls), in words; else empty."""
        for value in (self.first_s, *self.iterations_s):
            if not 0 < value < math.inf:
                return f"{value} s is no time of a call"
        if not self.iterations_s:
            return "no call was timed"
        made = Timing.of(self.first_s, self.iterations_s)
        for name in ("mean_s", "median_s", "min_s", "max_s"):
            if not math.isclose(getattr(self, name), getattr(made, name), rel_tol=1e-6):
                return f"{name}={getattr(self, name):g} is not that of its calls, {getattr(made, name):g}"
        return ""


def measure(
    call: Callable[[], Any],
    *,
    wait: Callable[[], None],
    warmup: int,
    iters: int,
    step: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
    limit_s: float = math.inf,
) -> tuple[Any, Timing]:
    """The first call's result and the times of all calls.

    Args:
      call: one pass.
      wait: returns when the device has finished; called before each clock reading.
      warmup: untimed calls between the first and the timed ones.
      iters: timed calls, at least 1.
      step: told before each call what it is, for a progress bar.
      clock: seconds.
      limit_s: once the calls have taken so long, no warm-up and no timed call but one begins; if the first call alone took
        so long it is the only one, and counts as timed.
    """
    memory = PeakMemory()

    def timed(what: str) -> tuple[Any, float]:
        step(what)
        wait()
        start = clock()
        result = call()
        wait()
        return result, clock() - start

    begun = clock()
    result, first = timed("first call")
    for number in range(warmup):
        name = f"warm-up {number + 1}/{warmup}"
        if clock() - begun < limit_s:
            timed(name)
        else:
            step(f"{name} is left out")
    seconds = [first] if first >= limit_s else []
    for number in range(iters):
        name = f"iteration {number + 1}/{iters}"
        if not seconds or clock() - begun < limit_s:
            seconds.append(timed(name)[1])
        else:
            step(f"{name} is left out")
    return result, Timing.of(first, seconds, memory.growth_bytes())


class PeakMemory:
    """Growth of this process's peak resident memory since the object was made. Linux only; elsewhere it knows nothing."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._status = proc / "status"
        try:
            (proc / "clear_refs").write_text("5")  # sets the peak back to what is held now
            self._before = self._field("VmRSS")
        except OSError:
            self._before = None

    def growth_bytes(self) -> int | None:
        """Bytes of the peak beyond what was held at the start, or None."""
        peak = self._field("VmHWM")
        return None if peak is None or self._before is None else max(0, peak - self._before)

    def _field(self, name: str) -> int | None:
        try:
            lines = self._status.read_text().splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
