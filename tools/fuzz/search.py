"""Random problems and random kernels from new seeds for some minutes; each failure becomes a small file that reproduces it.

python -m tools.fuzz.search --minutes 30            from the repository's root; `make fuzz MINUTES=30` does that
python -m tools.fuzz.search --first 100 --count 50  the problems and kernels of these seeds, whatever the time

Attention goes through the front doors and is compared with two references in float64 (attention_check.py): `attention` draws
sizes, masks and hostile scalars; in `biases` an additive bias has a gradient; `bands` are rows of many lengths that
`flash_const_max` takes; `forms` has what else masks, sinks and arguments may be, and nothing at all; `packs` FlashAttention's
functions, packed rows and merged parts; `decodes` few rows of many keys; `ways` graphs, transforms and contexts of torch;
`extras` dropout, gradients of gradients and blocks of keys; `serving` requests to continuous batching, each against itself
alone.
Kernels are judged instruction by instruction by a model in NumPy (kernel_check.py): `kernels`, `wide` with more
instructions, functions, types, views and loops, `rare` with the rest of the language, and `pairs` of two cores that meet often,
in loops of run time too. `tapes` are such kernels as the judge runs them: from a tape, with values and on shapes alone
(tape_check.py). Exit code 1 if something was found.
"""

from __future__ import annotations

import argparse
import math
import pprint
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.fuzz.attention_check import check_problem
from tools.fuzz.attention_extras import draw_extra
from tools.fuzz.attention_forms import draw_decode, draw_form, draw_way
from tools.fuzz.attention_packs import draw_pack, simpler_packs
from tools.fuzz.attention_problems import PLAIN, draw_band, draw_learnt_bias, draw_problem, simpler_problems
from tools.fuzz.kernel_check import check_program, without_refused
from tools.fuzz.kernel_issue import Refused
from tools.fuzz.kernel_programs import draw_program, simpler_programs
from tools.fuzz.pair_programs import draw_pair
from tools.fuzz.rare_programs import draw_rare
from tools.fuzz.serving_problems import check_serving, draw_serving, simpler_servings
from tools.fuzz.tape_check import check_tape, draw_taped
from tools.fuzz.wide_programs import draw_wide

__all__ = ["KINDS", "Found", "Kind", "main", "search", "simplest", "written"]

_PATIENCE_S = 60.0
"""Spent on making one failure smaller."""
_ENOUGH = 20
"""Failures of a kind after which the search goes on with the other kinds only."""


@dataclass(frozen=True)
class Kind:
    """What is searched: how a case of a seed is drawn, what is wrong with it (empty = nothing), and simpler cases."""

    draw: Callable[[int], Any]
    check: Callable[[Any], str]
    simpler: Callable[[Any], list[Any]]
    module: str
    function: str


@dataclass
class Found:
    """What a search did: cases tried of each kind, and the files of failures."""

    tried: Counter[str] = field(default_factory=Counter)
    files: list[Path] = field(default_factory=list)


def _drawn(draw: Callable[[int], Any]) -> Callable[[int], Any]:
    """Programs without the steps that rules refuse; whole where the simulator fails otherwise, which the check then finds."""

    def drawn(seed: int) -> Any:
        try:
            return without_refused(draw(seed))[0]
        except Exception:  # a fault that drawing met: the check meets it again, and reports it
            return draw(seed)

    return drawn


def _checked_program(program: Any) -> str:
    try:
        return check_program(program)
    except Refused:
        return ""


def _checked_tape(program: Any) -> str:
    try:
        return check_tape(program)
    except Refused:
        return ""


KINDS = {
    "attention": Kind(draw_problem, check_problem, simpler_problems, "tools.fuzz.attention_check", "check_problem"),
    "biases": Kind(draw_learnt_bias, check_problem, simpler_problems, "tools.fuzz.attention_check", "check_problem"),
    "bands": Kind(draw_band, check_problem, simpler_problems, "tools.fuzz.attention_check", "check_problem"),
    "forms": Kind(draw_form, check_problem, simpler_problems, "tools.fuzz.attention_check", "check_problem"),
    "packs": Kind(draw_pack, check_problem, simpler_packs, "tools.fuzz.attention_check", "check_problem"),
    "decodes": Kind(draw_decode, check_problem, simpler_problems, "tools.fuzz.attention_check", "check_problem"),
    "ways": Kind(draw_way, check_problem, simpler_problems, "tools.fuzz.attention_check", "check_problem"),
    "extras": Kind(draw_extra, check_problem, simpler_problems, "tools.fuzz.attention_check", "check_problem"),
    "kernels": Kind(_drawn(draw_program), _checked_program, simpler_programs, "tools.fuzz.kernel_check", "check_program"),
    "wide": Kind(_drawn(draw_wide), _checked_program, simpler_programs, "tools.fuzz.kernel_check", "check_program"),
    "pairs": Kind(_drawn(draw_pair), _checked_program, simpler_programs, "tools.fuzz.kernel_check", "check_program"),
    "tapes": Kind(_drawn(draw_taped), _checked_tape, simpler_programs, "tools.fuzz.tape_check", "check_tape"),
    "serving": Kind(draw_serving, check_serving, simpler_servings, "tools.fuzz.serving_problems", "check_serving"),
    "rare": Kind(_drawn(draw_rare), _checked_program, simpler_programs, "tools.fuzz.kernel_check", "check_program"),
}


def search(
    kinds: list[str],
    first: int,
    folder: Path,
    *,
    seconds: float | None = None,
    count: int | None = None,
    say: Callable[[str], None] = print,
) -> Found:
    """Try seeds from `first` on, until the time or the count is used up. Kinds get equal shares of the time, not of the seeds.

    Args:
      kinds: of `KINDS`; each goes through its own seeds.
      first: the first seed of each.
      folder: where failures are written.
      seconds, count: the end of the search; one of them. `count` seeds of each kind.
      say: takes lines for the user.
    """
    found, start, failures = Found(), time.monotonic(), Counter[str]()
    seeds, spent, told = dict.fromkeys(kinds, first), dict.fromkeys(kinds, 0.0), start
    while seconds is None or time.monotonic() - start < seconds:
        left = [name for name in kinds if failures[name] < _ENOUGH and (count is None or seeds[name] < first + count)]
        if not left:
            break
        name = min(left, key=lambda each: spent[each])
        began, kind, seed = time.monotonic(), KINDS[name], seeds[name]
        seeds[name] += 1
        case = kind.draw(seed)
        if case is not None:
            found.tried[name] += 1
            why = wrong_with(kind, case)
            if why:
                failures[name] += 1
                path = written(kind, simplest(kind, case, why), why, folder / f"{name}_{seed}.py")
                found.files.append(path)
                say(f"{name}, seed {seed}: {why}\n  reproduced by {path}")
        spent[name] += time.monotonic() - began
        if time.monotonic() - told > 60:
            told = time.monotonic()
            say(f"{_counts(found)}, seeds from {first} on")
    return found


def wrong_with(kind: Kind, case: Any) -> str:
    """What is wrong with a case, an exception included."""
    try:
        return kind.check(case)
    except Exception as error:  # any exception of a case is a finding
        frames = traceback.extract_tb(error.__traceback__)
        return f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}: {error}"


def simplest(kind: Kind, case: Any, why: str) -> Any:
    """The case made simpler for as long as the same is wrong with it, by the first word of `why`; what is not wrong each time
    may stay as it is.
    """
    end, first_word = time.monotonic() + _PATIENCE_S, why.partition(" ")[0]
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for simpler in kind.simpler(case):
            if time.monotonic() > end:
                break
            if wrong_with(kind, simpler).partition(" ")[0] == first_word:
                case, progress = simpler, True
                break
    return case


def written(kind: Kind, case: Any, why: str, path: Path) -> Path:
    """A file that checks the case again; `why` is what was wrong when it was found."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {name: value for name, value in case.items() if name not in PLAIN or PLAIN[name] != value}
    again = wrong_with(kind, case)
    said = again.splitlines()[0] if again else f"Not each time: {why.splitlines()[0]}"
    path.write_text(
        f'"""{said}. Run it from the repository\'s root."""\n\n'
        "import sys\nfrom math import inf, nan  # noqa: F401\n\nsys.path.insert(0, '.')\n"
        f"from {kind.module} import {kind.function}\n\n"
        f"CASE = {pprint.pformat(told, width=120, sort_dicts=False)}\n"
        f"why = {kind.function}(CASE)\nprint(why or 'nothing is wrong')\nsys.exit(bool(why))\n",
        encoding="utf-8",
    )
    return path


def _counts(found: Found) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in found.tried.items()) + f": {len(found.files)} failures"


def _number(kind: type, least: float, what: str) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        try:
            found = kind(text)
        except ValueError:
            found = None
        if found is None or not least <= found < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is no {what}, {least:g} or more")
        return found

    return number


def main(words: list[str] | None = None) -> int:
    """The command line; 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=_number(float, 0.001, "time in minutes"), default=30.0)
    parser.add_argument("--first", type=_number(int, 0, "seed"), default=None, help="the first; a new one if it is not given")
    parser.add_argument("--count", type=_number(int, 1, "number of seeds"), default=None, help="of seeds, instead of minutes")
    parser.add_argument("--only", choices=sorted(KINDS), default=None)
    parser.add_argument("--folder", type=Path, default=Path("out/fuzz"), help="where failures are written")
    options = parser.parse_args(words)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)  # now, and not when there is something to lose
    except OSError as error:
        parser.error(f"--folder {options.folder} cannot be used: {error.strerror}")
    first = secrets.randbelow(10**9) * 1000 if options.first is None else options.first
    print(f"seeds from {first} on", flush=True)
    found = search(
        list(KINDS) if options.only is None else [options.only],
        first,
        options.folder,
        count=options.count,
        seconds=60 * options.minutes if options.count is None else None,
        say=lambda line: print(line, flush=True),
    )
    print(_counts(found))
    return bool(found.files)


if __name__ == "__main__":
    sys.exit(main())
