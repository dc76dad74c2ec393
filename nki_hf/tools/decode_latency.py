"""Simulated time of one decode step of a layer, and its share of the bandwidth bound. Nothing here was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nki_hf.chips import CHIPS, Chip, get_chip
from nki_hf.chips.measurements import error_band
from nki_hf.problem import Problem
from nki_hf.timing.schedule import DEFAULT_WINDOW, schedule
from nki_hf.tools.error_bands import family_of
from nki_hf.tools.subjects import attention_candidate, attention_events

__all__ = ["DecodeStep", "bandwidth_us", "decode_rows", "decode_step"]

_SIZE = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """One attention call of a few query rows, on one chip.

    Attributes:
      chip, cores: what it runs on.
      kernel: which kernel runs it.
      us: simulated microseconds of the launch, its fixed cost included.
      bandwidth_us: keys and values once, at the rate of the DMA engines of the cores.
    """

    chip: str
    cores: int
    kernel: str
    us: float
    bandwidth_us: float

    @property
    def share(self) -> float:
        """Of the bandwidth bound; 1 = nothing but reading keys and values once takes time."""
        return self.bandwidth_us / self.us


def decode_step(
    problem: Problem, chip: Chip, lnc: int = 1, *, window: int | None = DEFAULT_WINDOW, kernel: str | None = None
) -> DecodeStep:
    """The step with the kernel that dispatch picks, or with `kernel`; `window=None` is program order.

    Raises:
      UnsupportedProblem: no kernel, or not that one, takes the problem.
    """
    candidate = attention_candidate(problem, chip, lnc, kernel=kernel)
    name = candidate.binding.name
    events = attention_events(problem, chip, lnc, kernel=name)
    if candidate.binding.live is not None:
        events = candidate.binding.live(events, problem, candidate.plan)
    us = schedule(events, chip, window=window).total_ns / 1e3
    return DecodeStep(chip=chip.name, cores=lnc, kernel=name, us=us, bandwidth_us=bandwidth_us(problem, chip, lnc))


def decode_rows(problem: Problem, layers: int) -> list[dict[str, Any]]:
    """A row for each chip at its default degree: kernel, microseconds a layer, share of the bandwidth, tokens/s of `layers`."""
    rows = []
    for name in CHIPS:
        chip = get_chip(name)
        step = decode_step(problem, chip, chip.default_lnc)
        rows.append(
            {
                "chip": name,
                "cores": step.cores,
                "kernel": step.kernel,
                "us_simulated": step.us,
                "bandwidth_share_simulated": step.share,
                "tokens_per_s_simulated": problem.batch * problem.seqlen_q / (layers * step.us / 1e6),
                "band": error_band(family_of(step.kernel), name),
            }
        )
    return rows


def bandwidth_us(problem: Problem, chip: Chip, lnc: int = 1) -> float:
    """Keys and values once, at the rate of the DMA engines, or of HBM where the cores of the launch share it."""
    size = _SIZE[problem.dtype]
    nbytes = problem.batch * problem.num_heads_kv * problem.seqlen_kv * (problem.head_dim + problem.head_dim_v) * size
    rate = float(lnc * chip.dma_engines * chip.dma_engine_bytes_per_ns)
    if lnc > 1:
        rate = min(rate, float(chip.hbm_bytes_per_ns))
    return nbytes / rate / 1e3
