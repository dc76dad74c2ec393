"""The tutorial's steps: judged, timed, and a report page of each.

    python tools/tutorial.py [--write] [--pages FOLDER]

`--write` puts table and hints into docs/tutorial.md, `--pages` writes one report page per step into a folder. Every time is
simulated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import nki_hf
from nki_hf.tools.program import finished
from tools.page_block import replace_block

__all__ = ["LAYOUT", "PAGE", "SIZE", "STEPS", "Step", "blocks", "judged", "markdown", "write_pages"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
STEPS = tuple(sorted((ROOT / "examples" / "tutorial").glob("step*.py")))
LAYOUT = "q=ds,k=ds,v=sd"
QUOTED = (("were loaded before",), ("the row sum reads", "in float32 take"), ("evictions from PSUM",), ())
"""Of each step, words of the hints that the page quotes, which the next step follows."""
SIZE, CHIPS = 2048, ("trn2", "trn1")
_CHECK = (512, 1024)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as judged.

    Attributes:
      name: its file.
      us: simulated microseconds by chip.
      score: share of what the chip allows at best, on the first chip.
      limit: the busiest engine there, and its share of the time.
      hints: what the judge says could be gained on the first chip.
    """

    name: str
    us: dict[str, float]
    score: float
    limit: str
    hints: tuple[str, ...]


def judged(path: Path) -> Step:
    """Judge one step.

    Raises:
      ValueError: it does not pass; the message is the verdict.
    """
    record = nki_hf.judge(str(path), "attention", layout=LAYOUT, check=_CHECK, at=(SIZE,), chip=CHIPS, seed=0)
    if not record["passed"]:
        raise ValueError(f"{path.name} does not pass: {record['sentence']}")
    first, at = record["times"][0], record["times"][0]["bottleneck"]
    return Step(
        name=path.name,
        us={row["chip"]: row["us"] for row in record["times"]},
        score=first["score"],
        limit=f"{at['engine']}, {at['active']:.0%}",
        hints=tuple(f"up to {h['gain_us']:,.1f} us: line {h['line']}: {h['text']}" for h in first["hints"]),
    )


def markdown(steps: Sequence[Step]) -> str:
    """The table of docs/tutorial.md."""
    lines = [
        f"| step | {CHIPS[0]}, µs (sim) | {CHIPS[1]}, µs (sim) | of the best possible, {CHIPS[0]} | busiest engine |",
        "|---|---:|---:|---:|---|",
    ]
    for step in steps:
        times = " | ".join(f"{step.us[chip]:,.0f}" for chip in CHIPS)
        lines.append(f"| `{step.name}` | {times} | {step.score:.0%} | {step.limit} |")
    return "\n".join(lines)


def blocks(steps: Sequence[Step]) -> dict[str, str]:
    """What stands between the markers of docs/tutorial.md, by name: the table, and the quoted hints of each step.

    Raises:
      ValueError: a step has no hint of the kind that the page quotes any more: the page has to be thought over.
    """
    found = {"tutorial": markdown(steps)}
    for number, (step, words) in enumerate(zip(steps, QUOTED, strict=True), 1):
        quoted = [next((hint for hint in step.hints if word in hint), "") for word in words]
        if not all(quoted):
            raise ValueError(f"{step.name} has no hint with {words[quoted.index('')]!r}: docs/tutorial.md quotes one.")
        if quoted:
            found[f"hints-{number}"] = "\n" + "".join(f"    {hint}\n" for hint in quoted)  # blank lines around: a code block
    return found


def write_pages(folder: Path) -> list[Path]:
    """A report page per step, on the first chip, as `nki_hf report` makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--task", "attention", "--layout", LAYOUT, "--at", str(SIZE), "--chip", CHIPS[0]]
    written = [folder / f"{path.stem}.html" for path in STEPS]
    for path, target in zip(STEPS, written, strict=True):
        command = [sys.executable, "-m", "nki_hf", "report", str(path.relative_to(ROOT)), *words, "-o", str(target.resolve())]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return written


def main() -> int:
    """Judge all steps and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/tutorial.md")
    parser.add_argument("--pages", type=Path, help="write a report page per step into this folder")
    asked = parser.parse_args()
    steps = [judged(path) for path in STEPS]
    print(markdown(steps))
    for step in steps:
        print(step.name, *step.hints, sep="\n    ")
    if asked.write:
        for name, body in blocks(steps).items():
            replace_block(PAGE, name, body)
    if asked.pages is not None:
        print(*write_pages(asked.pages), sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
