"""Simulated time of one decode step of a layer, and its share of the bandwidth bound. Nothing here was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nki_hf.chips import CHIPS, Chip, get_chip
from nki_hf.chips.measurements import error_band
from nki_hf.kernels.flash_decode.plan import plan_decode
from nki_hf.problem import Problem
from nki_hf.sim.stream.events import Event, Region
from nki_hf.timing.schedule import DEFAULT_WINDOW, schedule
from nki_hf.tools.error_bands import family_of
from nki_hf.tools.subjects import attention_candidate, attention_events

__all__ = ["DecodeStep", "bandwidth_us", "decode_rows", "decode_step", "live_events"]

_TILE, _QUARTERS = 128, 4
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
    name = kernel or attention_candidate(problem, chip, lnc).binding.name
    events: Sequence[Event]
    if name == "flash_decode":
        events = live_events(problem, chip, lnc)
    else:
        events = attention_events(problem, chip, lnc, kernel=name)
    us = schedule(events, chip, window=window).total_ns / 1e3
    return DecodeStep(chip=chip.name, cores=lnc, kernel=name, us=us, bandwidth_us=bandwidth_us(problem, chip, lnc))


def decode_rows(problem: Problem, layers: int) -> list[dict[str, Any]]:
    """A row for each chip at its default degree: kernel, microseconds a layer, share of the bandwidth, tokens/s of `layers`."""
    rows = []
    for name in CHIPS:
        chip = get_chip(name)
        step = decode_step(problem, chip, chip.default_lnc)
        rows.append({
            "chip": name, "cores": step.cores, "kernel": step.kernel, "us_simulated": step.us,
            "bandwidth_share_simulated": step.share,
            "tokens_per_s_simulated": problem.batch * problem.seqlen_q / (layers * step.us / 1e6),
            "band": error_band(family_of(step.kernel), name),
        })  # fmt: skip
    return rows


def bandwidth_us(problem: Problem, chip: Chip, lnc: int = 1) -> float:
    """Keys and values once, at the rate of the DMA engines, or of HBM where the cores of the launch share it."""
    size = _SIZE[problem.dtype]
    nbytes = problem.batch * problem.num_heads_kv * problem.seqlen_kv * (problem.head_dim + problem.head_dim_v) * size
    rate = float(lnc * chip.dma_engines * chip.dma_engine_bytes_per_ns)
    if lnc > 1:
        rate = min(rate, float(chip.hbm_bytes_per_ns))
    return nbytes / rate / 1e3


def live_events(problem: Problem, chip: Chip, lnc: int = 1) -> Sequence[Event]:
    """The events of flash_decode, all keys of the problem live: transfers of its bucket that start out of bounds move nothing.

    The timing model prices a transfer by its shape, not by where it starts. Here one that is skipped keeps its descriptor, its
    place in the ring and its latency, and moves one element a partition.
    """
    chunk = plan_decode(problem, chip).per_partition * _TILE
    whole = -(-problem.seqlen_kv // chunk) - 1
    tail = problem.seqlen_kv - whole * chunk
    events, seen = list(attention_events(problem, chip, lnc, kernel="flash_decode")), dict[Any, list[int]]()
    for number, event in enumerate(events):
        if event.opcode != "dma_copy" or event.reads[0].buffer.name not in ("k", "v"):
            continue
        target = event.writes[0]
        if target.shape[0] == _TILE:
            # Whole chunks of a unit come in order, on each core every `lnc`-th or all of them; those that are live come first.
            place = seen.setdefault((event.core, event.reads[0].buffer.name, event.reads[0].offset), [])
            place.append(number)
        elif target.partition_start // (_TILE // _QUARTERS) * chunk // _QUARTERS >= tail:
            events[number] = _nothing(event)
    by_unit: dict[Any, list[tuple[int, list[int]]]] = {}
    for (core, name, offset), places in seen.items():
        by_unit.setdefault((name, offset), []).append((core, places))
    for shares in by_unit.values():
        for core, places in shares:
            step, first = (len(shares), core) if len(shares) > 1 else (1, 0)
            for n, number in enumerate(places):
                if first + n * step >= whole:
                    events[number] = _nothing(events[number])
    return events


def _nothing(event: Event) -> Event:
    def one(region: Region) -> Region:
        return replace(region, shape=(region.shape[0], 1), strides=(region.strides[0], 1))

    reads = (one(event.reads[0]), *event.reads[1:])
    return replace(event, reads=reads, writes=tuple(one(region) for region in event.writes))
