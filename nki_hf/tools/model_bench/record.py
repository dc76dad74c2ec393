"""The result of a run as one record: what the JSON file holds and what the report prints."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nki_hf.tools.input_files import check_regular
from nki_hf.tools.model_bench.accuracy import Accuracy
from nki_hf.tools.model_bench.measure import Timing
from nki_hf.tools.model_bench.modelled import Modelled, ModelledDecode
from nki_hf.tools.model_bench.published import Published
from nki_hf.tools.output_files import whole_file

__all__ = ["BenchResult", "DecodeTimes", "Ran", "Row", "schema"]


@dataclass(frozen=True, kw_only=True)
class DecodeTimes:
    """Generation with a cache: the prompt in one pass, then the last tokens one by one.

    Attributes:
      prefill: times of the prompt's pass.
      step: times of the single-token passes; `first_s` is the first step ever taken, the iterations are all later ones.
      tokens_per_s: decoded tokens of the whole batch over the mean time of a step.
      accuracy: of the hidden states of the last prompt token and of every decoded token, against the same reference.
    """

    prefill: Timing
    step: Timing
    tokens_per_s: float
    accuracy: Accuracy


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Calls of our attention that were decided the same way.

    Attributes:
      layer: the module and its number.
      phase: `prefill` or `decode` (see `Decision.phase`).
      calls: how many.
      kernel, backend, chip, lnc, tiles: as in `Decision`.
      problem: the first call's sizes and options, as text.
      rejected: why other kernels (or, for a fallback, all of them) were not taken.
    """

    layer: str
    phase: str
    calls: int
    kernel: str
    backend: str
    chip: str
    lnc: int
    tiles: dict[str, Any]
    problem: str
    rejected: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One attention implementation.

    Attributes:
      attn: its name.
      skipped: why it was not run, with the figure; empty if it was.
      timing: times of the forward pass.
      prompts_per_s: prompts over the mean time.
      tokens_per_s: real tokens (padding not counted) over the mean time.
      speed_against_eager: eager's mean time over this one's; None without an eager row.
      accuracy: against the CPU reference.
      decode: times with a cache, if asked for.
      ran: what dispatch decided in this row, layer by layer; empty for other implementations.
      kernel_calls: calls of our kernels during this row; None for other implementations.
      fallbacks: calls that another implementation had to take over; None for other implementations.
    """

    attn: str
    skipped: str = ""
    timing: Timing | None = None
    prompts_per_s: float | None = None
    tokens_per_s: float | None = None
    speed_against_eager: float | None = None
    accuracy: Accuracy | None = None
    decode: DecodeTimes | None = None
    ran: tuple[Ran, ...] = ()
    kernel_calls: int | None = None
    fallbacks: int | None = None


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Everything a run found out.

    Attributes:
      command: the shell command that repeats it.
      header: versions, machine, device, model and input, in the order of printing.
      measured: True if the times are wall-clock times of the hardware that the header names.
      reference: what accuracy is measured against, and whether it came from the cache.
      baseline_rms: RMS error of eager on CPU in the run's dtype against the reference.
      rows: one per attention.
      modelled: what the timing model says of the nki row's attention on each chip; simulated, never measured.
      modelled_decode: the same of its decode steps; empty without such.
      passed: the verdict. Accuracy and fallbacks decide, speed never does.
      verdict: the verdict in words.
      published: figures that others published for a run of these sizes.
    """

    command: str
    header: dict[str, str]
    reference: dict[str, str]
    baseline_rms: float
    rows: tuple[Row, ...]
    modelled: tuple[Modelled, ...]
    passed: bool
    verdict: str
    modelled_decode: tuple[ModelledDecode, ...] = ()
    published: tuple[Published, ...] = ()

    def write(self, path: Path) -> None:
        """Write the record as JSON; the file is complete or absent. NaN is written as null."""
        with whole_file(path) as file:
            file.write(_ADAPTER.dump_json(self, indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> BenchResult:
        """The record of a file that `write` wrote.

        Raises:
          ValueError: it cannot be read, or is no record; the message says where.
        """
        try:
            check_regular(path)
            text = path.read_bytes()
        except OSError as error:
            raise ValueError(f"result={path} cannot be read ({error.strerror or error}).") from None
        try:
            found = _ADAPTER.validate_python(_with_nan(json.loads(text)))
            why = _wrong(found)
        except (ValueError, RecursionError) as error:  # pydantic's error is one
            errors = error.errors() if isinstance(error, ValidationError) else []
            why = ": ".join(filter(None, (".".join(map(str, errors[0]["loc"])), errors[0]["msg"]))) if errors else "no JSON"
        if why:
            raise ValueError(f"result={path} is no result of this benchmark ({why}): give a file that --json wrote.")
        return found


def _wrong(result: BenchResult) -> str:
    """What no run writes, in words; empty if there is nothing such."""
    names = [row.attn for row in result.rows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return f"rows: {twice[:40]} is there twice"
    for row in result.rows:
        passes = [("timing", row.timing)]
        passes += [("decode.prefill", row.decode.prefill), ("decode.step", row.decode.step)] if row.decode else []
        for place, timing in passes:
            why = timing.wrong() if timing is not None else ""
            if why:
                return f"rows: {row.attn[:40]}: {place}: {why}"
    for entry in result.modelled:
        for one in entry.rows:
            us = one.get("nki_us_simulated")
            if not isinstance(us, float | int) or not 0 < us < math.inf:
                return f"modelled: nki_us_simulated={str(us)[:40]} is no time"
            for name, kind in (("chip", str), ("cores", int), ("kernel", str)):
                if not isinstance(one.get(name), kind):
                    return f"modelled: {name}={str(one.get(name))[:40]} is none"
    return ""


def _with_nan(value: Any) -> Any:
    """The numbers of an `Accuracy` that were written as null are NaN; elsewhere null is None."""
    if isinstance(value, dict):
        inside = "mse" in value
        return {
            key: math.nan if inside and item is None and key != "worst_row" else _with_nan(item) for key, item in value.items()
        }
    return [_with_nan(item) for item in value] if isinstance(value, list) else value


_ADAPTER: TypeAdapter[BenchResult] = TypeAdapter(BenchResult)


def schema() -> dict[str, Any]:
    """The JSON schema of the result file."""
    return _ADAPTER.json_schema(mode="serialization")
