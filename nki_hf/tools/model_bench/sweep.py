"""`--sweep seqlen=512..16384`: attention by length: ours on each chip, the ladder, and published rows in one picture.

One head, head_dim 128, bfloat16, non-causal: the shape of the published ladder, so that all of it compares. Beside it the
model's own attention (its heads, causal). On a Neuron device the whole model is also run at each length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nki_hf.chips import CHIPS, get_chip
from nki_hf.chips.measurements import MEASUREMENTS, error_band, error_range, simulated_rows
from nki_hf.problem import Mask, Problem
from nki_hf.tools.charting import LIGHT, SERIES, Theme, drawn, picture_element, style
from nki_hf.tools.latency import attention_us
from nki_hf.tools.model_bench.options import BenchOptions, WrongUse
from nki_hf.tools.modelled import visible_flops
from nki_hf.tools.output_files import whole_file
from nki_hf.tools.subjects import attention_candidate
from nki_hf.tools.web_page import Page

__all__ = ["SIZE", "Point", "draw", "lengths_of", "model_problem", "sweep", "write_sweep"]

SIZE = (12.0, 5.6)
LONGEST = 32_768
_LADDER = ("v3", "v4", "v5", "v6", "v7", "v8", "v11")
_CHIP_COLOUR = dict(zip(CHIPS, (SERIES[0], SERIES[2], SERIES[3]), strict=False))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One length of one line.

    Attributes:
      line: what it is, e.g. `flash_const_max on trn2` or `v7`.
      chip: trn1, trn2 or trn3.
      kind: simulated, or published (measured by others).
      seqlen: queries and keys.
      us: microseconds of a call.
      tflops: TFLOP/s per core, on visible keys.
      of_peak: share of the cores' 16-bit peak.
    """

    line: str
    chip: str
    kind: str
    seqlen: int
    us: float
    tflops: float
    of_peak: float


def lengths_of(text: str) -> tuple[int, ...]:
    """`seqlen=512..16384` as 512, 1024, ..., 16384: each twice the one before.

    Raises:
      WrongUse: it is no such range.
    """
    name, _, span = text.partition("=")
    first, dots, last = span.partition("..")
    if name != "seqlen" or not dots or not all(part.isascii() and part.isdigit() and len(part) < 8 for part in (first, last)):
        raise WrongUse(f"sweep={text[:60]!r} is not known: write --sweep seqlen=512..16384, which doubles from the first on.")
    low, high = int(first), int(last)
    if not 128 <= low <= high <= LONGEST:
        raise WrongUse(f"sweep={text!r} is no range: it begins at 128 or more and ends at {LONGEST:,} or less.")
    lengths = [low]
    while lengths[-1] * 2 <= high:
        lengths.append(lengths[-1] * 2)
    return tuple(lengths)


def model_problem(config: Any, seqlen: int, options: BenchOptions) -> Problem | None:
    """The causal attention call of a model's configuration; None if it does not say its heads."""
    heads = getattr(config, "num_attention_heads", None)
    if not heads:
        return None
    heads_kv = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    mask = Mask(ahead=1, window=options.window)
    sizes = {"seqlen_q": seqlen, "seqlen_kv": seqlen, "head_dim": head_dim, "head_dim_v": head_dim}
    return Problem(batch=options.batch_size, num_heads_q=heads, num_heads_kv=heads_kv, mask=mask, **sizes)


def sweep(lengths: Sequence[int], model: Callable[[int], Problem | None], *, step: Callable[[str], None]) -> list[Point]:
    """All points: ours on every chip at the ladder's shape and the model's, the ladder as stored, published rows.

    Raises:
      UnsupportedProblem: no kernel takes the model's attention.
    """
    points = _ladder(lengths)
    for chip in CHIPS:
        for seqlen in lengths:
            one = Problem(
                batch=1,
                num_heads_q=1,
                num_heads_kv=1,
                seqlen_q=seqlen,
                seqlen_kv=seqlen,
                head_dim=128,
                head_dim_v=128,
                mask=Mask(),
            )
            step(f"{chip}: one head, {seqlen:,} keys")
            points.append(_ours(one, chip, 1, "one head"))
            whole = model(seqlen)
            if whole is not None:
                step(f"{chip}: the model's heads, {seqlen:,} keys")
                points.append(_ours(whole, chip, get_chip(chip).default_lnc, "the model's heads, causal"))
    return points


def _ours(problem: Problem, chip: str, cores: int, what: str) -> Point:
    kernel = attention_candidate(problem, get_chip(chip), cores).binding.name
    us = attention_us(problem, get_chip(chip), cores, kernel=kernel, budget=60_000).us
    return _point(f"{kernel} on {chip}, {what}", chip, "simulated", problem.seqlen_q, us, visible_flops(problem), cores)


def _ladder(lengths: Sequence[int]) -> list[Point]:
    """The rungs at the lengths of published rows within the range: as published, and as the model has them."""
    points, known = [], simulated_rows()
    for row in MEASUREMENTS:
        if row.subject in _LADDER and lengths[0] <= row.size <= lengths[-1]:
            flops = 4 * row.size * row.size * 128
            points.append(_point(row.subject, row.chip, "published", row.size, row.us, flops, 1))
            if row.key in known:
                points.append(_point(row.subject, row.chip, "simulated", row.size, known[row.key]["us"], flops, 1))
    return points


def _point(line: str, chip: str, kind: str, seqlen: int, us: float, flops: int, cores: int) -> Point:
    tflops = flops / us / 1e6 / cores
    return Point(
        line=line,
        chip=chip,
        kind=kind,
        seqlen=seqlen,
        us=us,
        tflops=tflops,
        of_peak=tflops / float(get_chip(chip).tensor_peak_tflops),
    )


def write_sweep(points: Sequence[Point], path: Path, command: str) -> tuple[Path, Path]:
    """Write the page at `path` and the picture beside it."""
    picture = path.with_suffix(".png")
    made = Page("nki_hf: attention by length")
    made.say(
        "Lines are SIMULATED, dots published measurements. The ladder is one head, head_dim 128, bfloat16, non-causal, "
        "one core of trn1, p50 (2026)."
    )
    made.chart(picture_element(partial(draw, points), SIZE, "microseconds and TFLOP/s by length"))
    places = {line: n for n, line in enumerate(dict.fromkeys(p.line for p in points))}
    ordered = sorted(points, key=lambda p: (places[p.line], p.seqlen, p.kind))
    made.table(
        ("line", "chip", "kind", "length", "µs a call", "TFLOP/s a core", "of peak"),
        [[p.line, p.chip, p.kind, f"{p.seqlen:,}", f"{p.us:,.1f}", f"{p.tflops:.1f}", f"{p.of_peak:.0%}"] for p in ordered],
    )
    for chip in CHIPS:
        made.say(f"error of simulated times on measured rows: {error_band('attention', chip)}.", note=True)
    made.code(command)
    for target, content in ((path, made.text().encode()), (picture, drawn(partial(draw, points), LIGHT, SIZE, "png"))):
        with whole_file(target) as file:
            file.write(content)
    return path, picture


def draw(points: Sequence[Point], figure: Any, theme: Theme) -> None:
    """Microseconds of one head by length, and TFLOP/s of a core."""
    left, right = figure.subplots(1, 2)
    one = [p for p in points if "heads" not in p.line]
    for axes, field, chosen in ((left, "us", one), (right, "tflops", points)):
        _rungs(axes, theme, chosen, field)
        _kernels(axes, chosen, field)
        axes.set_xscale("log", base=2)
        lengths = sorted({p.seqlen for p in points})
        axes.set_xticks(lengths, [f"{n // 1024}K" if n % 1024 == 0 else str(n) for n in lengths])
        axes.minorticks_off()
    left.set_yscale("log")
    style(
        left,
        theme,
        title="one head, one core: lines SIMULATED, dots published",
        x="queries and keys",
        y="µs a call",
        grid="both",
    )
    for chip in ("trn1", "trn2"):
        peak = float(get_chip(chip).tensor_peak_tflops)
        right.axhline(peak, color=theme.text, linewidth=0.8, linestyle=":")
        right.text(
            0.01,
            peak,
            f"peak of {chip if chip == 'trn1' else 'trn2, trn3'}",
            color=theme.text,
            fontsize=8,
            va="bottom",
            transform=right.get_yaxis_transform(),
        )
    right.set_ylim(bottom=0)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False, labelcolor=theme.text)
    style(
        right,
        theme,
        title="rate on visible keys (band: error of the model)",
        x="queries and keys",
        y="TFLOP/s a core",
        grid="both",
    )


def _rungs(axes: Any, theme: Theme, points: Sequence[Point], field: str) -> None:
    """The ladder in grey: its best and worst rungs named."""
    first = True
    for rung in _LADDER:
        for kind in ("simulated", "published"):
            chosen = sorted((p for p in points if p.line == rung and p.kind == kind), key=lambda p: p.seqlen)
            if not chosen:
                continue
            x, y = [p.seqlen for p in chosen], [getattr(p, field) for p in chosen]
            label = f"ladder v3 to v11 on trn1, {kind}" if first else None
            if kind == "simulated":
                axes.plot(x, y, color=SERIES[6], linewidth=1, label=label)
            else:
                axes.plot(x, y, "o", color=SERIES[1], markersize=4, label=label)
                first = False
            if kind == "published" and rung in ("v3", "v7", "v11"):
                axes.annotate(rung, (x[-1], y[-1]), xytext=(4, -3), textcoords="offset points", color=theme.text, fontsize=8)


def _kernels(axes: Any, points: Sequence[Point], field: str) -> None:
    lines: dict[tuple[str, str], list[Point]] = {}
    for p in points:
        if p.line not in _LADDER:
            what = p.line.partition(", ")[2]
            lines.setdefault((p.chip, what), []).append(p)
    for (chip, what), chosen in lines.items():
        chosen.sort(key=lambda p: p.seqlen)
        x, y = [p.seqlen for p in chosen], [getattr(p, field) for p in chosen]
        dash = "-" if what == "one head" else "--"
        width = 1.2 if chip == "trn3" else 2.2  # it lies on the line of trn2
        axes.plot(
            x,
            y,
            dash,
            color=_CHIP_COLOUR[chip],
            linewidth=width,
            label=f"nki_hf on {chip}, {what} (sim)",
        )
        band = error_range("attention", chip)
        if band is not None and what == "one head":
            sign = 1 if field == "tflops" else -1
            low, high = ([v * (1 + band[i]) ** sign for v in y] for i in (0, 1))
            axes.fill_between(x, low, high, color=_CHIP_COLOUR[chip], alpha=0.15, linewidth=0)
