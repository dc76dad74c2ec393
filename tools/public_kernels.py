"""Simulated beside published latencies of kernels that nobody here wrote, run unmodified from somebody's checkout.

    python tools/public_kernels.py --library ../nki-library --samples ../nki-samples --docs ../aws-neuron-sdk/nki/examples

* `--library`: aws-neuron/nki-library, attention_cte at the published shape (trn2, one core and two).
* `--samples`: a folder with attention_kernels.py of aws-neuron/nki-samples (attention_fwd_performance, commit a2927a51),
  attn_fwd_v1 to v10.
* `--docs`: nki/examples of aws-neuron/aws-neuron-sdk: the tutorial's matrix multiplications and the fused Mamba kernels.

The kernels leave the engine of a copy to their compiler; `--copies` says which engine it is taken to have chosen. All
figures in the simulated columns are simulated; the measured ones are published. `--write`, which needs all three folders,
puts the table into docs/timing.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf import sim
from nki_hf.chips import Chip, get_chip
from nki_hf.sim.stream.events import Event
from nki_hf.timing.schedule import DEFAULT_WINDOW, schedule
from nki_hf.tools.program import finished
from tools.page_block import TIMING, replace_block

_NO_FIGURE = float("nan")
_SAMPLES_US = {
    "v3": (57, 175, 652, 3130), "v4": (25, 67, 229, 873), "v5": (23, 53, 171, 631), "v6": (23, 53, 163, 609),
    "v7": (19, 39, 112, 400), "v8": (20, 40, 116, 421), "v9": (23, 43, 118, 429),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel at one shape.

    Attributes:
      kernel: its name, with the shape if it has only one here.
      size: keys, where there are several; else 0.
      chip: trn1, trn2 or trn3.
      measured_us: published; nan if there is none.
      events: makes its event stream.
      scale: the published case is that many times the simulated one (heads that are alike).
    """

    kernel: str
    size: int = 0
    chip: str
    measured_us: float
    events: Callable[[], Sequence[Event]]
    scale: int = 1


def _shape(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _events(kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], chip: Chip, lnc: int = 1) -> Sequence[Event]:
    options = sim.SimOptions(chip=chip, values=False, third_party=True, checks=False)
    return sim.launch(kernel, args, kwargs, options=options, lnc=lnc).events


def samples(folder: Path) -> Iterator[Case]:
    """attn_fwd_v1 to v10 on trn1, q, k, v [128, seqlen] bfloat16."""
    sys.path.insert(0, str(folder))
    module = importlib.import_module("attention_kernels")
    chip = get_chip("trn1")
    for version in range(1, 12):
        kernel = getattr(module, f"attn_fwd_v{version}", None)
        if kernel is None:
            continue
        sizes = (128,) if version < 3 else (512, 1024, 2048, 4096)
        for place, size in enumerate(sizes):
            measured = _SAMPLES_US.get(f"v{version}", (_NO_FIGURE,) * 4)[place] if version > 2 else _NO_FIGURE
            tensors = (_shape((128, size), ml_dtypes.bfloat16),) * 3
            yield Case(kernel=f"attn_fwd_v{version}", size=size, chip="trn1", measured_us=measured,
                       events=lambda kernel=kernel, tensors=tensors: _events(kernel, tensors, {}, chip))  # fmt: skip


def library(checkout: Path) -> Iterator[Case]:
    """attention_cte, causal, 4,096 keys, head_dim 128, 10 query heads a kv head: 4 of the 80 published heads."""
    sys.path.insert(0, str(checkout / "src"))
    module = importlib.import_module("nkilib_src.nkilib.core.attention.attention_cte")
    chip, heads = get_chip("trn2"), 4
    for lnc, measured in ((1, 13_688 - 60), (2, 7_407 - 60)):
        tensors = {
            "q": _shape((heads, 4096, 128), ml_dtypes.bfloat16), "k": _shape((1, 128, 4096), ml_dtypes.bfloat16),
            "v": _shape((1, 4096, 128), ml_dtypes.bfloat16),
        }  # fmt: skip
        yield Case(
            kernel=f"attention_cte, 80 heads, causal 4,096, {lnc} core{'s' * (lnc > 1)}", chip="trn2", measured_us=measured,
            events=lambda tensors=tensors, lnc=lnc: _events(module.attention_cte, (), tensors, chip, lnc), scale=80 // heads,
        )  # fmt: skip


def docs(examples: Path) -> Iterator[Case]:
    """The tutorial's matrix multiplications (trn2, float32 4096 x 8192 x 8192, a quarter of n) and fused Mamba (trn1)."""
    sys.path[:0] = [str(examples / "matrix_multiplication"), str(examples / "fused_mamba")]
    matmul = importlib.import_module("matrix_multiplication_nki_kernels")
    trn1, trn2 = get_chip("trn1"), get_chip("trn2")
    operands = (_shape((8192, 4096), np.float32), _shape((8192, 2048), np.float32))
    for name, measured in (("nki_matmul_tiled_", 39_890), ("nki_matmul_fully_optimized_", 28_300)):
        kernel = getattr(matmul, name)
        yield Case(kernel=name.strip("_"), chip="trn2", measured_us=measured, scale=4,
                   events=lambda kernel=kernel: _events(kernel, operands, {}, trn2))  # fmt: skip
    mamba = importlib.import_module("mamba_nki_kernels")
    wide, narrow = _shape((1, 4096, 512), np.float32), _shape((1, 16, 512), np.float32)
    arguments = (wide, wide, _shape((4096, 16), np.float32), narrow, narrow)
    for name, measured in (("mamba_v1", 2_340), ("mamba_v2", 1_610)):
        kernel = getattr(mamba, name)
        yield Case(kernel=f"{name}, 4,096 channels, 16 states, 512", chip="trn1", measured_us=measured,
                   events=lambda kernel=kernel: _events(kernel, arguments, {}, trn1))  # fmt: skip


def placed(events: Sequence[Event], copies: str) -> list[Event]:
    """The stream with PSUM evictions (tensor_copy out of PSUM) on `copies`: vector, scalar, or each in turn."""
    out, turn = [], 0
    for event in events:
        if event.opcode == "tensor_copy" and event.engine == "vector" and event.reads[0].buffer.space == "psum":
            engine = copies if copies != "alternate" else ("scalar", "vector")[turn % 2]
            turn += 1
            if engine == "scalar":
                event = replace(event, engine="scalar", queue="scalar", opcode="activation", attrs={"op": "copy"})
        out.append(event)
    return out


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a case: simulated µs in a window and in program order."""

    case: Case
    instructions: int
    window_us: float
    program_us: float

    @property
    def error(self) -> str:
        """Simulated / measured - 1, or a dash."""
        known = self.case.measured_us == self.case.measured_us
        return f"{self.window_us / self.case.measured_us - 1:+.0%}" if known else "-"

    @property
    def measured(self) -> str:
        """The published figure, or a dash."""
        return f"{self.case.measured_us:,.0f}" if self.case.measured_us == self.case.measured_us else "-"


def simulate(case: Case, copies: str) -> Result:
    """Both orders of one case."""
    events, chip = placed(case.events(), copies), get_chip(case.chip)
    figures = []
    for window in (DEFAULT_WINDOW, None):
        plan = schedule(events, chip, window=window)
        figures.append((plan.total_ns - chip.kernel_fixed_ns) * case.scale / 1e3 + chip.kernel_fixed_ns / 1e3)
    return Result(case=case, instructions=len(events), window_us=figures[0], program_us=figures[1])


def markdown(results: Sequence[Result]) -> str:
    """The table of docs/timing.md: a row per kernel, its sizes side by side."""
    lines = ["| kernel | chip | measured us | simulated us | error |", "|---|---|---:|---:|---:|"]
    by_kernel: dict[str, list[Result]] = {}
    for result in results:
        by_kernel.setdefault(result.case.kernel, []).append(result)
    for kernel, rows in by_kernel.items():
        sizes = " / ".join(f"{row.case.size:,}" for row in rows if row.case.size)
        measured = " / ".join(row.measured for row in rows) if any(row.measured != "-" for row in rows) else "not published"
        errors = " / ".join(row.error for row in rows) if any(row.error != "-" for row in rows) else ""
        lines.append(f"| {kernel}{', ' if sizes else ''}{sizes} | {rows[0].case.chip} | {measured} | "
                     f"{' / '.join(f'{row.window_us:,.0f}' for row in rows)} | {errors} |")  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    """Print the table; 0 if every case ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("library", "samples", "docs"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--copies", choices=("vector", "scalar", "alternate"), default="scalar")
    parser.add_argument("--longest", type=int, default=4096, help="longest sequence of the samples")
    parser.add_argument("--write", action="store_true", help="put the table into docs/timing.md")
    asked = parser.parse_args()
    if asked.write and not (asked.library and asked.samples and asked.docs):
        parser.error("--write needs --library, --samples and --docs: the page's table has all of them.")
    os.environ.setdefault("NKILIB_SIMULATION_RUN_ALL", "1")
    console = Console(width=130)
    table = Table("kernel", "chip", "instructions", "measured µs", "simulated µs", "error", "program order µs (sim)",
                  title=f"public kernels, unmodified; PSUM copies on {asked.copies}")  # fmt: skip
    results, failed = [], 0
    with sim.as_nki():
        cases = [case for read, folder in ((library, asked.library), (samples, asked.samples), (docs, asked.docs)) if folder
                 for case in read(folder)]  # fmt: skip
        for case in cases:
            if case.size > asked.longest:
                continue
            try:
                result = simulate(case, asked.copies)
            except Exception as error:  # a foreign kernel may refuse in any way; the table says which one did and how
                console.print(f"{case.kernel} {case.size}: {type(error).__name__}: {error}")
                failed += 1
                continue
            results.append(result)
            table.add_row(f"{case.kernel} {case.size or ''}", case.chip, f"{result.instructions:,}", result.measured,
                          f"{result.window_us:,.0f}", result.error, f"{result.program_us:,.0f}")  # fmt: skip
    console.print(table)
    if asked.write and not failed:
        replace_block(TIMING, "public-kernels", markdown(results))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
