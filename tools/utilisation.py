"""How much of the Tensor engine's peak attention uses: the ladder, public kernels, ours on each chip, and FlashAttention-4.

    python tools/utilisation.py [--write]

Shares are operations on visible keys over the 16-bit peak of the cores that ran. Measured ones are published by others;
simulated ones come from the timing model, with its error band. `--write` puts the table into docs/utilisation.md and the
picture, light and dark, into docs/images.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.chips import CHIPS, get_chip
from nki_hf.chips.measurements import MEASUREMENTS, Measurement, error_range, simulated_rows
from nki_hf.problem import Mask, Problem
from nki_hf.tools.charting import DARK, LIGHT, SERIES, Theme, drawn, style
from nki_hf.tools.latency import attention_us
from nki_hf.tools.modelled import visible_flops
from nki_hf.tools.program import finished
from nki_hf.tools.subjects import attention_candidate, subject
from tools.page_block import replace_block

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURES = DOCS / "utilisation.md", DOCS / "images"
SIZE = (10.0, 7.6)
OURS = (4096, 16384)
_KEYS = 4096
"""Length at which the ladder is compared."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """One kernel's share of peak.

    Attributes:
      kernel: name, and its size where it has several.
      where: chip and cores.
      group: ladder, public, ours or elsewhere.
      measured, simulated: shares of peak; None where there is no such figure.
      band: the share if the model errs as on its worst rows either way; None if that is not known.
      note: what the shape is, or what makes the figure special.
    """

    kernel: str
    where: str
    group: str
    measured: float | None = None
    simulated: float | None = None
    band: tuple[float, float] | None = None
    note: str = ""


def share_of(flops: float, us: float, chip: str, cores: int = 1) -> float:
    """Operations in that time over the 16-bit peak of so many cores."""
    return flops / us / 1e6 / (cores * float(get_chip(chip).tensor_peak_tflops))


def published() -> list[Share]:
    """The ladder at 4,096 keys and public kernels whose shape is known, with what the model gives for the same row."""
    known, found = simulated_rows(), []
    for row in MEASUREMENTS:
        if row.family != "attention" or (row.size != _KEYS and not row.public):
            continue
        flops, cores, note = _work(row)
        simulated = known.get(row.key)
        found.append(
            Share(
                kernel=row.subject,
                where=f"{row.chip}, {cores} core{'s' * (cores > 1)}",
                group="public" if row.public or row.subject.startswith("sd_") else "ladder",
                measured=share_of(flops, row.us, row.chip, cores),
                simulated=share_of(flops, simulated["us"], row.chip, cores) if simulated else None,
                note=note,
            )
        )
    return found


def _work(row: Measurement) -> tuple[float, int, str]:
    """Operations on visible keys, cores, and the shape in words."""
    if not row.public:
        head_dim = 64 if row.subject.startswith("sd_") else 128
        note = (
            "float32 in and out; head_dim 64 fills half of the Tensor engine" if head_dim == 64 else subject(row.subject).idea
        )
        return subject(row.subject).flops(row.size), 1, note
    heads, causal = int(row.shape.split()[0]), "non-causal" not in row.shape
    cores = 2 if "2 cores" in row.shape else 1
    mask = Mask(ahead=1) if causal else Mask()
    problem = Problem(
        batch=1,
        num_heads_q=heads,
        num_heads_kv=heads,
        seqlen_q=row.size,
        seqlen_kv=row.size,
        head_dim=128,
        head_dim_v=128,
        mask=mask,
    )
    return visible_flops(problem), cores, f"{heads} heads, {row.size:,}, {'causal' if causal else 'non-causal'}"


def elsewhere() -> list[Share]:
    """Published shares without a row of their own: no shape is given, or it is another chip."""
    video = "nki-library 2.33, in a video model, 4-way context parallel; shape not published"
    return [
        Share(kernel="attention_const_max", where="trn3, LNC 1", group="public", measured=0.643, note=video),
        Share(kernel="attention_const_max", where="trn3, LNC 2", group="public", measured=0.600, note=video),
        Share(kernel="FlashAttention-4", where="B200", group="elsewhere", measured=1613 / 2250, note="1,613 of 2,250 TFLOP/s"),
    ]


def ours() -> list[Share]:
    """One head, head_dim 128, bfloat16, non-causal, one core: the kernel that dispatch picks on each chip."""
    found = []
    for chip in CHIPS:
        band = error_range("attention", chip)
        for seqlen in OURS:
            problem = Problem(
                batch=1,
                num_heads_q=1,
                num_heads_kv=1,
                seqlen_q=seqlen,
                seqlen_kv=seqlen,
                head_dim=128,
                head_dim_v=128,
                mask=Mask(),
            )
            kernel = attention_candidate(problem, get_chip(chip)).binding.name
            share = share_of(visible_flops(problem), attention_us(problem, get_chip(chip), kernel=kernel).us, chip)
            found.append(
                Share(
                    kernel=f"{kernel} {seqlen // 1024}K",
                    where=f"{chip}, 1 core",
                    group="ours",
                    simulated=share,
                    band=None if band is None else (share * (1 + band[0]), share * (1 + band[1])),
                    note="one head, non-causal",
                )
            )
    return found


def markdown(rows: Sequence[Share]) -> str:
    """The table of docs/utilisation.md."""
    lines = ["| kernel | where | measured | simulated | with the model's error | what |", "|---|---|---:|---:|---:|---|"]
    for row in rows:
        measured = "" if row.measured is None else f"{row.measured:.1%}"
        simulated = "" if row.simulated is None else f"{row.simulated:.1%} (sim)"
        band = "" if row.band is None else f"{row.band[0]:.0%} .. {row.band[1]:.0%} (sim)"
        if row.group == "ours" and row.band is None:
            band = "not known"
        lines.append(f"| {row.kernel} | {row.where} | {measured} | {simulated} | {band} | {row.note} |")
    return "\n".join(lines)


def draw(rows: Sequence[Share], figure: Any, theme: Theme) -> None:
    """A bar per kernel: filled if it was measured, hatched if it is simulated."""
    axes = figure.subplots()
    colours = {"ladder": SERIES[6], "public": SERIES[0], "ours": SERIES[2], "elsewhere": SERIES[1]}
    labels = []
    for place, row in enumerate(rows):
        colour = colours[row.group]
        if row.measured is not None:
            axes.barh(place, 100 * row.measured, height=0.62, color=colour)
        else:
            share = 100 * (row.simulated or 0)
            axes.barh(place, share, height=0.62, color="none", edgecolor=colour, hatch="////", linewidth=1.2)
        if row.measured is not None and row.simulated is not None:
            axes.plot(100 * row.simulated, place, "D", color=theme.text, markerfacecolor=theme.back, markersize=5)
        if row.band is not None:
            axes.plot([100 * row.band[0], 100 * row.band[1]], [place, place], color=theme.text, linewidth=1.4)
        value = row.measured if row.measured is not None else row.simulated
        far = max(v for v in (row.measured, row.simulated, row.band and row.band[1]) if v is not None)
        mark = "" if row.measured is not None else " simulated" + ("" if row.band else ", error not known")
        axes.text(100 * far + 1.2, place, f"{value:.0%}{mark}", va="center", color=theme.text, fontsize=8)
        labels.append(f"{row.kernel}   {row.where}")
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 118)
    axes.set_xticks(range(0, 101, 20))
    style(
        axes,
        theme,
        grid="x",
        x="% of the 16-bit peak of the cores that ran, operations on visible keys",
        title="share of peak: filled = measured (published), hatched = SIMULATED with the model's error,\n"
        "diamond = the model on the same row",
    )


def main() -> int:
    """Print the table; with --write, put it and the pictures where the documentation has them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/utilisation.md and docs/images")
    asked = parser.parse_args()
    rows = [*published(), *elsewhere()[:2], *ours(), *elsewhere()[2:]]
    print(markdown(rows))
    if asked.write:
        replace_block(PAGE, "utilisation", markdown(rows))
        for theme, name in ((LIGHT, "utilisation.png"), (DARK, "utilisation_dark.png")):
            (PICTURES / name).write_bytes(drawn(partial(draw, rows), theme, SIZE, "png"))
    return 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
