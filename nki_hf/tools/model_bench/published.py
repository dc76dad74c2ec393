"""Published figures of a preset, printed beside a run of its sizes; never mixed with what was measured or simulated here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nki_hf.tools.error_bands import band_of
from nki_hf.tools.model_bench.modelled import Modelled
from nki_hf.tools.model_bench.options import OFFLINE_MODEL, PRESETS, BenchOptions

__all__ = ["AIM414", "Published", "published_for", "published_lines"]


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published rate.

    Attributes:
      what: the attention.
      prompts_per_s: of the whole model.
      where: hardware and source.
    """

    what: str
    prompts_per_s: float
    where: str


_WHERE = "trn2.3xlarge, one core, Qwen3-0.6B with 4 layers, 16K tokens; AWS re:Invent 2025, session AIM414"

AIM414 = (
    Published(what="eager", prompts_per_s=0.35, where=_WHERE),
    Published(what="nki", prompts_per_s=2.99, where=_WHERE),
)


def published_for(options: BenchOptions) -> tuple[Published, ...]:
    """The figures whose sizes a run has; empty for other sizes, models or dtypes."""
    sizes = {name: getattr(options, name) for name in PRESETS["aim414"]}
    same_model = options.model in (OFFLINE_MODEL, "Qwen/Qwen3-0.6B")
    plain = options.window is None and not options.padded and options.dtype == "bf16"
    return AIM414 if sizes == PRESETS["aim414"] and same_model and plain else ()


def published_lines(published: Sequence[Published], modelled: Sequence[Modelled]) -> list[str]:
    """What others published for these sizes, and the simulated attention of one core beside it; empty for other sizes."""
    if not published:
        return []
    lines = [f"published: {row.what} {row.prompts_per_s:g} prompts/s ({row.where})" for row in published]
    for entry in modelled:
        if entry.one_core is not None:
            row = entry.one_core
            ours, eager = row["nki_model_ms_simulated"], row["eager_like_model_ms_simulated"]
            whole = [1e3 / line.prompts_per_s for line in published]  # ms a prompt
            lines.append(
                f"simulated: one {row['chip']} core spends {ours:,.1f} ms on attention ({row['kernel']}, {entry.layers} "
                f"layers) of the {whole[-1]:,.0f} ms that a published prompt takes with NKI attention; the eager-like rung "
                f"takes {eager:,.0f} ms, where a whole published prompt with eager takes {whole[0]:,.0f} ms; "
                f"{band_of(row['kernel'], row['chip'])}"
            )
    return lines
