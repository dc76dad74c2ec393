"""One conformance case and its verdict."""

from __future__ import annotations

import gc
import re
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nki_hf.errors import KernelFault

__all__ = ["Case", "Outcome", "Skipped", "run_case"]


_PATH = re.compile(r"/(?:[^\s/()]+/)+([^\s/()]+)")
"""An absolute path and its last part: where a checkout lies says nothing to a reader."""


class Skipped(Exception):
    """The case is not run here; the message says why."""


class _Overtime(BaseException):
    """Ends a case that takes too long; a BaseException so that no handler under test swallows it."""


@dataclass(frozen=True)
class Case:
    """One kernel with one combination of options.

    Attributes:
      kernel: name of the kernel, the table's first column.
      option: what is particular about this case.
      run: runs it; returns the error as a share of the tolerance, a remark or None; raises if the case fails.
    """

    kernel: str
    option: str
    run: Callable[[], float | str | None]


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `passed`, `failed`, `refused` or `not run`, and why."""

    kernel: str
    option: str
    verdict: str
    detail: str


def run_case(case: Case, seconds: float) -> Outcome:
    """Run a case for at most `seconds` of this process's CPU time, so that what else the machine does decides nothing; kernels'
    printing is left alone, their warnings are silenced.
    """
    begin = time.process_time()
    previous = signal.signal(signal.SIGPROF, _interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            share = case.run()
        detail = f"error {share:.2f} of the tolerance" if isinstance(share, float) else share or ""
        verdict = "passed"
    except _Overtime:
        verdict, detail = "not run", f"longer than {seconds:.0f} s"
    except Skipped as reason:
        verdict, detail = "not run", str(reason)
    except KernelFault as fault:
        verdict = "refused" if fault.record.kind in ("unsupported", "generation") else "failed"
        detail = str(fault)
    except MemoryError as error:
        verdict, detail = "not run", f"needs too much memory: {error}"
    except Exception as error:  # whatever a foreign kernel raises is this case's verdict, not the runner's end
        own = isinstance(error, AssertionError) and "Kernel validation exception" in str(error)
        verdict, detail = "refused" if own else "failed", f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
        gc.collect()  # a launch's buffers lie in cycles; the next case may need their memory
    print(f"{verdict:8} {time.process_time() - begin:6.1f} s  {case.kernel}  {case.option}  {detail[:160]}", flush=True)
    return Outcome(case.kernel, case.option, verdict, _PATH.sub(r"\1", " ".join(detail.split())))


def _interrupt(*_: Any) -> None:
    raise _Overtime
