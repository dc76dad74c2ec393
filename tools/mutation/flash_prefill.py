"""Mutation study: plants faults in the source of flash_prefill and shows what notices them.

python tools/mutation/flash_prefill.py [--per-class N] [--report]

Each mutant runs on a battery of small problems that covers the kernel's options, in the simulator with never-written memory
refused, and is judged as `nki_hf verify` judges: the first thing that notices it decides its column. `error` means that the
mutant stopped as a Python program, `missed` that nothing noticed it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from nki_hf.chips import get_chip
from nki_hf.problem import Mask, Problem
from nki_hf.sim import SimOptions
from nki_hf.tools.verify_cases import run
from nki_hf.tools.verify_load import load_callable
from nki_hf.tools.verify_subject import AttentionSubject
from tools.mutation.mutants import CLASSES, Mutant, mutants
from tools.mutation.replacing import replaced_once
from tools.page_block import replace_block

__all__ = ["BATTERY", "COLUMNS", "SOURCE", "examine"]

_KERNELS = Path(__file__).parents[2] / "nki_hf" / "kernels"
COLUMNS = ("constraint", "memory", "race", "value", "error", "missed")
_MEMORY = ("capacity", "overlap", "uninitialized")
_PAGE = Path(__file__).parents[2] / "docs" / "mutation.md"


def _problem(**changes: Any) -> Problem:
    sizes: dict[str, Any] = {
        "batch": 1,
        "num_heads_q": 1,
        "num_heads_kv": 1,
        "seqlen_q": 130,
        "seqlen_kv": 300,
        "head_dim": 64,
        "head_dim_v": 64,
    }
    return Problem(**{**sizes, **changes})


_PARTS = (
    "hidden",
    "block_scores",
    "turned",
    "flash_prefill.row_statistics",
    "flash_prefill.loads",
    "flash_prefill.finish",
    "flash_prefill.stages",
)
"""Modules whose functions the kernel calls, each after those that it calls itself."""


def _whole_source() -> str:
    """The kernel with the functions of its other modules, and those that it shares with others, in place of their imports."""
    imports = re.compile(rf"^from nki_hf\.kernels\.({'|'.join(map(re.escape, _PARTS))}) import .+\n", re.MULTILINE)
    texts = [(_KERNELS / f"{part.replace('.', '/')}.py").read_text() for part in _PARTS]
    functions = "".join(text.partition("from nki_hf.lang import nisa, nl\n")[2] for text in texts)
    kernel = imports.sub("", (_KERNELS / "flash_prefill/kernel.py").read_text())
    return replaced_once(kernel, "\n\n@nki.jit\n", f"\n{functions}\n\n@nki.jit\n")


SOURCE = _whole_source()
"""What faults are planted in."""

BATTERY: dict[str, tuple[Problem, str, int, dict[str, Any]]] = {
    "causal, grouped heads": (
        _problem(num_heads_q=2, seqlen_q=200, seqlen_kv=700, mask=Mask(q_offset=500, ahead=1)), "trn2", 1, {}),
    "window, additive bias, head_dim 192": (
        _problem(seqlen_q=150, seqlen_kv=700, head_dim=192, head_dim_v=160, dtype="float32",
                 mask=Mask(q_offset=550, ahead=1, window=400, bias="additive", bias_rows=True)), "trn2", 1, {}),
    "softcap, sink, boolean bias": (
        _problem(num_heads_q=2, num_heads_kv=2, seqlen_kv=600, softcap=5.0, sink=True, dtype="float32",
                 mask=Mask(bias="boolean", bias_heads=True, bias_rows=True)), "trn2", 1, {}),
    "run-time bounds on trn1": (
        _problem(batch=2, seqlen_q=140, seqlen_kv=600, head_dim=80, head_dim_v=72, dtype="float16",
                 mask=Mask(runtime_bounds=True)), "trn1", 1, {}),
    "two cores that share one head": (_problem(num_heads_q=3, num_heads_kv=3, seqlen_q=260, seqlen_kv=520), "trn2", 2, {}),
    "keys in sections": (
        _problem(num_heads_q=2, seqlen_q=128, seqlen_kv=2600, mask=Mask(q_offset=2472, ahead=1)), "trn3", 1, {"section": 2048}),
    "negative scale, window alone": (
        _problem(seqlen_q=100, seqlen_kv=200, softmax_scale=-0.2, dtype="float32", mask=Mask(q_offset=60, window=50)), "trn2",
        1, {}),
    "two batches, key bias per batch, odd rows": (
        _problem(batch=2, num_heads_q=2, seqlen_q=63, seqlen_kv=200, mask=Mask(bias="additive", bias_batch=True)), "trn2", 1,
        {}),
    "query tiles without keys, sink": (
        _problem(num_heads_q=2, seqlen_q=256, seqlen_kv=130, sink=True, dtype="float32", mask=Mask(q_offset=-128, ahead=1)),
        "trn2", 1, {}),
    "query tiles and rows without keys, few keys, scale above 1": (
        _problem(seqlen_q=256, seqlen_kv=100, softmax_scale=3.0, mask=Mask(q_offset=-228, ahead=1)), "trn2", 1, {}),
}  # fmt: skip
"""Problem, chip, lnc and forced constants by name; what each is for is its name."""


def examine(source: str, *, problems: Sequence[str] = tuple(BATTERY)) -> tuple[str, str]:
    """What notices the faults of a mutated kernel first: a column, and one line of detail."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.py"
        path.write_text(source)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                kernel = load_callable(f"{path}:flash_prefill")
            for name in problems:
                noticed = _examine_on(kernel, name)
                if noticed is not None:
                    return noticed[0], f"{name}: {noticed[1]}"
        except Exception as error:  # a mutant may fail in any way that a Python program can
            return "error", f"{type(error).__name__}: {error}"
    return "missed", ""


def _examine_on(kernel: Any, name: str) -> tuple[str, str] | None:
    problem, chip, lnc, constants = BATTERY[name]
    subject = AttentionSubject(kernel=kernel, problem=problem, chip=get_chip(chip), lnc=lnc, constants=constants)
    options = SimOptions(chip=get_chip(chip), uninitialized="error")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflow in a mutant's arithmetic is what it is judged for
        found = run(subject, options=options, lnc=lnc, distributions=("normal", "outlier_key"))
    if found["passed"]:
        return None
    if found["faults"]:
        fault = found["faults"][0]
        column = "race" if fault["kind"] == "race" else "memory" if fault["kind"] in _MEMORY else "constraint"
        return column, f"{fault['instruction']}: {fault['message']}"
    failed = next(case for case in found["cases"] if case["verdict"] != "pass")
    return "value", f"{failed['distribution']}: {failed['verdict']}: {failed['detail']}"


def chosen(found: Sequence[Mutant], per_class: int) -> list[Mutant]:
    """At most `per_class` mutants of each class, spread evenly over the source."""
    picked: list[Mutant] = []
    for kind in CLASSES:
        own = [mutant for mutant in found if mutant.kind == kind]
        count = min(per_class, len(own))
        picked += [own[i * len(own) // count] for i in range(count)]
    return picked


def main() -> int:
    """Run the study; 0 unless the unchanged kernel itself fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-class", type=int, default=12, help="mutants of each class of faults")
    parser.add_argument("--report", action="store_true", help="write the table to docs/mutation.md")
    options = parser.parse_args()
    column, detail = examine(SOURCE)
    if column != "missed":
        print(f"the unchanged kernel fails ({column}): {detail}")
        return 1
    table: dict[str, Counter[str]] = {kind: Counter() for kind in CLASSES}
    missed: list[Mutant] = []
    for mutant in chosen(mutants(SOURCE), options.per_class):
        column, detail = examine(mutant.plant(SOURCE))
        table[mutant.kind][column] += 1
        print(f"{column:10} line {mutant.line:3} {mutant.kind}: {mutant.what}  [{detail[:150]}]", flush=True)
        if column == "missed":
            missed.append(mutant)
    text = _render(table, missed, f"python tools/mutation/flash_prefill.py --per-class {options.per_class}")
    print(text)
    if options.report:
        replace_block(_PAGE, "table", text.removesuffix("\n"))
    return 0


def _render(table: dict[str, Counter[str]], missed: Sequence[Mutant], command: str) -> str:
    lines = [f"Command: `{command}`", "", f"| planted fault | mutants | {' | '.join(COLUMNS)} |"]
    lines.append("|---|" + "---:|" * (len(COLUMNS) + 1))
    total: Counter[str] = Counter()
    for kind, counts in table.items():
        lines.append(f"| {kind} | {counts.total()} | " + " | ".join(str(counts[column]) for column in COLUMNS) + " |")
        total += counts
    lines.append(f"| **all** | {total.total()} | " + " | ".join(str(total[column]) for column in COLUMNS) + " |")
    lines += ["", "| missed | line |", "|---|---:|"]
    lines += [f"| {mutant.kind}: {mutant.what.replace('|', '/')} | {mutant.line} |" for mutant in missed]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
