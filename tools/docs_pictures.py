"""Every picture of the documentation, made again.

    python tools/docs_pictures.py [--only NAME]

NAME is scaling (attention by length, about five minutes), utilisation, timelines, report, or journeys. Light and dark files
stand beside each other in docs/images. All times in them are simulated but for the published rows, which the pictures mark.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.tools.charting import DARK, LIGHT, drawn
from nki_hf.tools.model_bench.options import BenchOptions
from nki_hf.tools.model_bench.sweep import SIZE, draw, lengths_of, model_problem, sweep
from nki_hf.tools.program import finished

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
HEADS = SimpleNamespace(num_attention_heads=16, num_key_value_heads=8, head_dim=128)
"""Those of Qwen3-0.6B."""


def scaling() -> None:
    """docs/images/scaling.png and scaling_dark.png, as `qwen3_bench.py --sweep seqlen=512..16384` draws them.

    Each file holds the simulated microseconds that it shows as its description, so that a test sees when they are old.
    """
    points = sweep(
        lengths_of("seqlen=512..16384"),
        lambda seqlen: model_problem(HEADS, seqlen, BenchOptions()),
        step=lambda what: print(what, file=sys.stderr, flush=True),
    )
    shown = json.dumps([[p.line, p.seqlen, round(p.us, 1)] for p in points if p.kind == "simulated"])
    for theme, name in ((LIGHT, "scaling.png"), (DARK, "scaling_dark.png")):
        (IMAGES / name).write_bytes(drawn(partial(draw, points), theme, SIZE, "png", description=shown))


def utilisation() -> None:
    """The picture and the table of docs/utilisation.md."""
    _run(str(ROOT / "tools" / "utilisation.py"), "--write")


def timelines() -> None:
    """The two timelines of docs/timing.md."""
    for name, words in (
        ("flash_prefill_trn2", ("--kernel", "flash_prefill", "--chip", "trn2")),
        ("v11_trn1", ("--kernel", "v11", "--chip", "trn1")),
    ):
        _run("-m", "nki_hf", "trace", *words, "--seqlen", "1024", "-o", str(IMAGES / f"{name}.png"))


def report() -> None:
    """The first screen of a report page, light and dark; needs a headless browser."""
    _run(str(ROOT / "tools" / "report_pictures.py"), "--docs")


def journeys() -> None:
    """The pictures and tables of docs/journeys.md; several minutes."""
    _run(str(ROOT / "tools" / "journeys.py"), "--write")


PICTURES = {"scaling": scaling, "utilisation": utilisation, "timelines": timelines, "report": report, "journeys": journeys}


def _run(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT)


def main() -> int:
    """Make all of them, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PICTURES, help="only this one")
    asked = parser.parse_args()
    for name, make in PICTURES.items():
        if asked.only in (None, name):
            make()
    return 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
