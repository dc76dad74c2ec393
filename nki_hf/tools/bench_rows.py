"""Rows of `nki_hf bench`: simulated latencies per chip, ours beside the eager-like rung."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nki_hf.chips import CHIPS, Chip, get_chip
from nki_hf.chips.measurements import error_band
from nki_hf.dispatch import decide
from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.problem import Problem
from nki_hf.tools.error_bands import family_of
from nki_hf.tools.latency import attention_us, eager_like_us, independent_units, one_unit
from nki_hf.tools.lengths import attention_instructions, check_length
from nki_hf.tools.modelled import visible_flops
from nki_hf.tools.subjects import attention_kernels

__all__ = ["check_shape_length", "modelled_rows", "run"]


def run(
    problem: Problem,
    chips: tuple[str, ...] = tuple(CHIPS),
    *,
    window: int | None,
    lnc: int | None = None,
    budget: int = 300_000,
    progress: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """A row per chip: simulated µs of the kernel that dispatch picks and of the eager-like rung, TFLOP/s on visible keys, how
    they were found, and the error band of its kernel's family.

    Args:
      problem: the call.
      chips: their names.
      window: order option of the schedule.
      lnc: cores; None = each chip's default.
      budget: instructions per core up to which every head is scheduled (see `latency.attention_us`).
      progress: called after each of the two kernels of each chip.

    Raises:
      UnsupportedProblem: no kernel takes the problem on one of the chips.
    """
    rows = []
    for name in chips:
        chip = get_chip(name)
        cores = chip.default_lnc if lnc is None else lnc
        decision = decide(problem, backend="simulator", chip=name, lnc=cores)
        if decision.plan is None:
            raise UnsupportedProblem(decision.rejected)
        ours = attention_us(problem, chip, cores, window=window, budget=budget, kernel=decision.kernel)
        if progress is not None:
            progress()
        eager = eager_like_us(problem, chip, cores)
        if progress is not None:
            progress()
        rows.append(
            {
                "chip": name,
                "cores": cores,
                "kernel": decision.kernel,
                "nki_us_simulated": ours.us,
                "eager_like_us_simulated": eager,
                "speedup_simulated": eager / ours.us,
                "visible_tflops_simulated": visible_flops(problem) / ours.us / 1e6,
                "peak_tflops": cores * chip.tensor_peak_tflops,
                "extrapolated": ours.extrapolated,
                "instructions": ours.instructions,
                "band": error_band(family_of(decision.kernel), name),
            }
        )
    return rows


def modelled_rows(
    problem: Problem,
    layers: int,
    *,
    window: int | None = 64,
    chips: tuple[str, ...] = tuple(CHIPS),
    lnc: int | None = None,
    prompts: int | None = None,
    budget: int = 60_000,
) -> list[dict[str, Any]]:
    """`run` plus what a model of `layers` such calls would spend on attention, and the prompts/s that alone would allow.

    Args:
      problem: the attention call of one layer for one batch of prompts.
      layers: attention layers of the model.
      window, chips, lnc, budget: as in `run`; the default budget is for tables beside other work.
      prompts: prompts per batch; default is the problem's batch.
    """
    rows = run(problem, chips, window=window, lnc=lnc, budget=budget)
    count = problem.batch if prompts is None else prompts
    for row in rows:
        for kind in ("nki", "eager_like"):
            seconds = layers * row[f"{kind}_us_simulated"] / 1e6
            row[f"{kind}_model_ms_simulated"] = seconds * 1e3
            row[f"{kind}_prompts_per_s_simulated"] = count / seconds
    return rows


def check_shape_length(problem: Problem, chip: Chip, lnc: int | None) -> int:
    """About how many instructions are scheduled: of one unit, or of all where none stands for the others.

    Raises:
      ValueError: they are too many for every kernel.
      UnsupportedProblem: no kernel takes the problem.
    """
    cores = chip.default_lnc if lnc is None else lnc
    counts: list[tuple[int, bool]] = []
    refused: list[Reason] = []
    for kernel in attention_kernels():
        alike = independent_units(problem, cores, kernel)
        try:
            counts.append((attention_instructions(one_unit(problem, kernel) if alike else problem, chip, kernel), alike))
        except UnsupportedProblem as error:
            refused.extend(error.reasons)
    if not counts:
        raise UnsupportedProblem(refused)
    count, alike = min(counts)
    what = "one (batch, kv head) unit of the shape" if alike else f"the shape on {cores} core{'s' if cores > 1 else ''}"
    uneven = "" if alike or not problem.batch * problem.num_heads_kv % cores else f", or b x hkv as a multiple of {cores}"
    check_length(count, what, f"give smaller sizes{uneven}")
    return count
