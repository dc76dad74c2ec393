"""The benchmark's page and picture, beside its result file."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from nki_hf.tools.charting import LIGHT, drawn, picture_element
from nki_hf.tools.error_bands import band_of
from nki_hf.tools.latency import EAGER_NOTE
from nki_hf.tools.model_bench.charts import SIZE, draw
from nki_hf.tools.model_bench.modelled import Modelled
from nki_hf.tools.model_bench.published import published_lines
from nki_hf.tools.model_bench.record import BenchResult
from nki_hf.tools.model_bench.report import table_rows
from nki_hf.tools.output_files import whole_file
from nki_hf.tools.web_page import Page

__all__ = ["SHARE_NOTE", "page", "write_page"]

SHARE_NOTE = (
    "The share is the most it can be: the rest of the layer is its projections and MLP at the Tensor engine's sustained rate "
    "or its weights read once, whichever takes longer; norms, rotary embeddings and waits come on top."
)


def write_page(result: BenchResult, json: Path) -> tuple[Path, Path]:
    """Write `<result>.html` and `<result>.png`; each is complete or absent.

    Raises:
      BackendUnavailable: matplotlib is not installed.
    """
    made = page(result), drawn(partial(draw, result), LIGHT, SIZE, "png")
    paths = json.with_suffix(".html"), json.with_suffix(".png")
    for path, content in zip(paths, made, strict=True):
        with whole_file(path) as file:
            file.write(content)
    return paths


def page(result: BenchResult) -> bytes:
    """The HTML file."""
    made = Page("nki_hf benchmark")
    made.lead(f"{'PASS' if result.passed else 'FAIL'}: {result.verdict}", good=result.passed)
    made.say(f"{result.header.get('model', '')}. {result.header.get('input', '')}. Times: {result.header.get('times', '')}.")
    made.chart(picture_element(partial(draw, result), SIZE, "rate, latency, accuracy, simulated times, share of attention"))
    for title, columns, rows in table_rows(result):
        made.heading(title)
        made.table([column.title for column in columns], [[column.cell(row) for column in columns] for row in rows])
    for row in result.rows:
        if row.skipped:
            made.say(f"{row.attn} skipped: {row.skipped}", note=True)
    for entry in result.modelled:
        _simulated(made, entry)
    if result.published:
        made.heading("published beside it")
        for line in published_lines(result.published, result.modelled):
            made.say(line)
    made.heading("machine and versions")
    made.facts(result.header.items())
    made.heading("repeat")
    made.code(result.command)
    return made.text().encode()


def _words(problem: str) -> str:
    """What a problem asks for, of the text that a result file holds; the text itself if it is another one."""
    found = dict(re.findall(r"(\w+)='?([\w.]+)", problem))
    try:
        heads, keys_heads, dtype = found["num_heads_q"], found["num_heads_kv"], found["dtype"]
        queries, keys = int(found["seqlen_q"]), int(found["seqlen_kv"])
        window = "" if found.get("window", "None") == "None" else f", window {int(found['window']):,}"
        return (
            f"{found['batch']} x {heads} query heads on {keys_heads} key heads, {queries:,} queries, {keys:,} keys{window}, "
            f"head_dim {found['head_dim']}, {dtype}"
        )
    except (KeyError, ValueError):
        return problem


def _simulated(made: Page, entry: Modelled) -> None:
    made.heading("attention on Trainium: simulated, no figure here was measured")
    made.say(f"{entry.layers_in_words} run{'s' * (entry.layers == 1)} {_words(entry.problem)}.", note=True)
    titles = [
        "chip",
        "cores",
        "kernel",
        "µs a layer (sim)",
        f"ms, {entry.layers_in_words} (sim)",
        "prompts/s, attention alone (sim)",
        "share of the layer, at most (sim)",
    ]
    rows = []
    for row in [*entry.rows, *([entry.one_core] if entry.one_core else [])]:
        for kind, name in (("nki", row["kernel"]), ("eager_like", "eager-like (ladder v3)")):
            share = row.get(f"{kind}_share_simulated")
            rows.append(
                [
                    row["chip"],
                    str(row["cores"]),
                    name,
                    f"{row[f'{kind}_us_simulated']:,.0f}",
                    f"{row[f'{kind}_model_ms_simulated']:,.2f}",
                    f"{row[f'{kind}_prompts_per_s_simulated']:,.1f}",
                    "-" if share is None else f"{share:.0%}",
                ]
            )
    made.table(titles, rows)
    for row in entry.rows:
        made.say(f"{band_of(row['kernel'], row['chip'])}.", note=True)
    made.say(f"{EAGER_NOTE}.", note=True)
    if any("nki_share_simulated" in row for row in entry.rows):
        made.say(SHARE_NOTE, note=True)
