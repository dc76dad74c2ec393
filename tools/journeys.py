"""The published journeys replayed: every step judged and timed by the model, beside what was measured. Writes docs/journeys.md.

    python tools/journeys.py [--write] [--processes N]

Steps are kernels of this package (nki_hf/ladder, examples/scripted_agent.py), written after the published descriptions. The
page's tables and the pictures in docs/images come from here; several minutes on one core, most of it for v3.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from page_block import replace_block

from nki_hf.chips import CHIPS
from nki_hf.chips.measurements import MEASUREMENTS
from nki_hf.tools.judging.named_kernels import named
from nki_hf.tools.searching.facts import failed_record
from nki_hf.tools.searching.options import judge_options, round_limit
from nki_hf.tools.searching.picture import picture
from nki_hf.tools.searching.workers import Workers, processes_of

__all__ = ["JOURNEYS", "Journey", "kept", "order"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "journeys.md"
_SIZES = (512, 1024, 2048, 4096)
_TIE, _TIE_MODEL, _SAME = 0.02, 0.05, 0.005
_AGENT = dict(zip(_SIZES, (19, 39, 111, 400), strict=True))
"""Us of the kernel of the blog's agent after six rounds (2026, trn1.2xlarge, p50); its earlier rounds are not published."""


@dataclass(frozen=True, kw_only=True)
class Journey:
    """A published sequence of kernels for one task.

    Attributes:
      name: of its block and pictures.
      task: what they compute.
      steps: name and idea of each, in the published order; the name is a kernel's.
      sizes: at which they are timed.
      chips: on which.
      measured: us on trn1 by step and size.
      better: True if every step was published as an improvement; False if what was measured says which were.
    """

    name: str
    task: str
    steps: tuple[tuple[str, str], ...]
    sizes: tuple[int, ...]
    chips: tuple[str, ...] = tuple(CHIPS)
    measured: Mapping[tuple[str, int], float] = field(default_factory=dict)
    better: bool = True


def _measured(names: Sequence[str]) -> dict[tuple[str, int], float]:
    return {(m.subject, m.size): m.us for m in MEASUREMENTS if m.chip == "trn1" and m.subject in names}


_LADDER = (
    ("v3", "tiles, every intermediate through HBM"),
    ("v4", "everything stays in SBUF"),
    ("v5", "division delayed to the output"),
    ("v6", "exp and row sum in one Scalar instruction"),
    ("v7", "probabilities and V in bfloat16"),
    ("v8", "row maximum and PSUM eviction in one Vector instruction"),
    ("v11", "software pipelining over query tiles"),
)
_DIFFUSION = (
    ("sd_baseline", "exp, row sum and cast are three passes"),
    ("sd_fused_exp", "exp, row sum and cast in one activation"),
    ("sd_joint_loads", "one loop loads Q and K"),
    ("sd_vector_transpose", "V joins it; the divisor is transposed on the Vector engine"),
    ("sd_bf16_scores", "scores in bfloat16"),
    ("sd_swapped_operands", "operands of PV exchanged: no broadcast of the divisor, no transpose of the output"),
)
_WALK = (
    ("walk_v3", "naive"),
    ("walk_v4", "in SBUF"),
    ("walk_v5", "division delayed"),
    ("walk_v6", "exp and sum in one"),
    ("walk_v7", "bfloat16 probabilities"),
)

JOURNEYS = (
    Journey(name="ladder", task="attention_unscaled", steps=_LADDER, sizes=_SIZES, measured=_measured([s for s, _ in _LADDER]),
            better=False),
    Journey(name="agent", task="attention_unscaled", steps=_WALK, sizes=_SIZES, chips=("trn1",),
            measured={("walk_v7", size): us for size, us in _AGENT.items()}),
    Journey(name="autocomp", task="attention_diffusion", steps=_DIFFUSION, sizes=(4096,),
            measured=_measured(["sd_baseline", "sd_swapped_operands"])),
)  # fmt: skip


def kept(before: float, after: float, measured: tuple[float, float] | None) -> bool:
    """Whether the model has two neighbouring steps in the published order.

    Args:
      before, after: simulated us.
      measured: those measured; None: the later step was published as an improvement. Two that were measured within 2 % are
        in order if the model has them within 5 %; an improvement is one unless it costs more than 0.5 %.
    """
    if measured is None:
        return after <= before * (1 + _SAME)
    if abs(measured[1] / measured[0] - 1) <= _TIE:
        return abs(after / before - 1) <= _TIE_MODEL
    return (after < before) == (measured[1] < measured[0])


def order(journey: Journey, times: Mapping[tuple[str, str, int], float], chip: str) -> list[tuple[str, str, int, bool]]:
    """Each neighbouring pair and size on a chip, and whether its order is kept. On trn2 and trn3, where nothing was measured,
    the published order is that of trn1.
    """
    found = []
    for size in journey.sizes:
        for (a, _), (b, _) in pairwise(journey.steps):
            pair = None if journey.better else (journey.measured[a, size], journey.measured[b, size])
            found.append((a, b, size, kept(times[a, chip, size], times[b, chip, size], pair)))
    return found


def simulated(journey: Journey, workers: Workers, folder: Path) -> dict[tuple[str, str, int], float]:
    """Us by step, chip and size, of kernels that pass the judge.

    Raises:
      ValueError: a step fails.
    """
    sizes = ",".join(map(str, journey.sizes))
    options = judge_options(check="512,512", at=sizes, chip=",".join(journey.chips), timeout=600, seed=1)
    jobs = []
    for step, _ in journey.steps:
        walk = step.startswith("walk_")
        item = named(str(folder / f"{step}.py") if walk else step, journey.task, "q=ds,k=ds,v=ds" if walk else "")
        jobs.append({"kind": "judge", "path": item.path, "task": journey.task, "options": {**options, "layout": item.layout}})
    found = {}
    for number, answer in workers.run(jobs, round_limit(options)):
        step = journey.steps[number][0]
        record = answer.get("record") or failed_record(step, journey.task, answer.get("error", ""))
        if not record["passed"]:
            raise ValueError(f"{step}: {record['sentence']}")
        found |= {(step, row["chip"], row["size"]): float(row["us"]) for row in record["times"]}
        print(
            f"{journey.name} {step}: " + ", ".join(f"{row['chip']}@{row['size']} {row['us']:,.1f}" for row in record["times"])
        )
    return found


def block(journey: Journey, times: Mapping[tuple[str, str, int], float]) -> str:
    """The table of a journey, and what its order says."""
    head = ["step", "idea"]
    for size in journey.sizes:
        head += [f"{size:,}: measured trn1", *(f"{size:,}: sim {chip}" for chip in journey.chips)]
    lines = [f"| {' | '.join(head)} |", f"|---|---|{'---:|' * (len(head) - 2)}"]
    for step, idea in journey.steps:
        cells = [step.removeprefix("walk_"), idea]
        for size in journey.sizes:
            us = journey.measured.get((step, size))
            cells += ["" if us is None else f"{us:,.0f}", *(f"{times[step, chip, size]:,.1f}" for chip in journey.chips)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Us; simulated in the default order."]
    for chip in journey.chips:
        pairs = order(journey, times, chip)
        wrong = [f"{a} to {b} at {size:,}" for a, b, size, right in pairs if not right]
        share = sum(right for *_, right in pairs) / len(pairs)
        said = f" Otherwise than published: {'; '.join(wrong)}." if wrong else ""
        lines.append(f"* {chip}: {share:.0%} of {len(pairs)} neighbouring pairs in the published order.{said}")
    first, last = journey.steps[0][0], journey.steps[-1][0]
    for size in journey.sizes:
        gains = ", ".join(f"{times[first, chip, size] / times[last, chip, size]:.2f}x {chip}" for chip in journey.chips)
        known = [journey.measured.get((step, size)) for step in (first, last)]
        measured = f"measured {known[0] / known[1]:.2f}x on trn1; " if known[0] and known[1] else ""
        lines.append(f"* From the first step to the last at {size:,}: {measured}simulated {gains}.")
    return "\n".join(lines)


def drawn(journey: Journey, times: Mapping[tuple[str, str, int], float]) -> bytes:
    """The picture: a panel per chip at the largest size."""
    size = journey.sizes[-1]
    names = [step.removeprefix("walk_") for step, _ in journey.steps]
    panels: list[dict[str, Any]] = []
    for chip in journey.chips:
        points = [(n, times[step, chip, size]) for n, (step, _) in enumerate(journey.steps)]
        measured = [
            (n, journey.measured[step, size])
            for n, (step, _) in enumerate(journey.steps)
            if chip == "trn1" and (step, size) in journey.measured
        ]
        panels.append({"title": f"{chip}, {size:,} keys", "points": points, "lines": {}, "measured": measured, "names": names})
    return picture(panels, f"{journey.name}: {journey.task}", "svg", label="step")


def main() -> None:
    """Run the journeys; print or write their blocks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/journeys.md and the pictures")
    parser.add_argument("--processes", type=int, default=0, help="0 = one per core")
    arguments = parser.parse_args()
    spec = importlib.util.spec_from_file_location("scripted_agent", ROOT / "examples" / "scripted_agent.py")
    if spec is None or spec.loader is None:
        raise SystemExit("examples/scripted_agent.py is not here.")
    walk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(walk)
    with tempfile.TemporaryDirectory(prefix="nki_hf_journeys_") as name, Workers(processes_of(arguments.processes)) as workers:
        for (step, _), (_, source) in zip(_WALK, walk.steps(), strict=True):
            (Path(name) / f"{step}.py").write_text(source)
        for journey in JOURNEYS:
            times = simulated(journey, workers, Path(name))
            if not arguments.write:
                print(block(journey, times))
                continue
            body = f"{block(journey, times)}\n\n![{journey.name}](images/journey_{journey.name}.svg)"
            replace_block(PAGE, journey.name, body)
            (PAGE.parent / "images" / f"journey_{journey.name}.svg").write_bytes(drawn(journey, times))
            print(json.dumps({f"{a} {b} {c}": us for (a, b, c), us in times.items()}))


if __name__ == "__main__":
    main()
