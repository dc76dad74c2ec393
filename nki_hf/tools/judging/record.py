"""The record of a judgement: one JSON object with a versioned schema; the same for the command and for Python."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from nki_hf.tools.judging.stage_names import SCHEMA_VERSION

__all__ = ["Record", "schema"]

Stage = Literal["load", "run", "lint", "limits", "memory", "races", "values", "times"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Finding(_Model):
    """One fault: its stage and kind, one sentence, what is allowed, what to do, and the kernel's line."""

    stage: Stage
    kind: str
    message: str
    limit: str = ""
    advice: str = ""
    file: str = ""
    line: int = 0


class Case(_Model):
    """One size and distribution: `verdict` is `pass` or what failed; errors are of rows, relative."""

    size: int
    distribution: str
    output: str
    verdict: str
    detail: str
    row_error: float | None = None
    tolerance: float | None = None
    error_ratio: float | None = None
    row_factor_ratio: float | None = None


class Bottleneck(_Model):
    """What is active longest, its costliest line, and the us saved if it took no time."""

    engine: str
    opcode: str
    file: str
    line: int
    code: str
    active: float
    share: float
    gain_us: float


class Hint(_Model):
    """What to change at a line, and the us that it would gain at most."""

    rule: str
    file: str
    line: int
    text: str
    gain_us: float


class Step(_Model):
    """A kernel line's share of the critical path."""

    engine: str
    opcode: str
    file: str
    line: int
    us: float
    share: float


class Time(_Model):
    """A simulated latency. `score` is `least_us / us`; `speedup` is over the kernel of `--against`. `values` tells whether
    those of this size were `judged`, a `part` (one tile of rows), or `not judged`. `spills` says which memory overflows, where
    one does: the time is that with spills.
    """

    size: int
    chip: str
    lnc: int
    us: float
    order: str
    instructions: int
    band: str | None = None
    floors_us: dict[str, float]
    least_us: float
    score: float
    against_us: float | None = None
    speedup: float | None = None
    values: str = "not judged"
    bottleneck: Bottleneck | None = None
    spills: str = ""
    sentence: str
    path: list[Step]
    counters: dict[str, float]
    hints: list[Hint]


class FirstDifference(_Model):
    """Where a wrong kernel parts from the right one of `--against`."""

    opcode: str
    file: str
    line: int
    parent_file: str
    parent_line: int
    text: str


class Ragged(_Model):
    """What the kernel does at a size that no tile divides: `right`, `wrong`, `refused` (by an assert, a raise, or the
    language), `crashed` (its Python fails otherwise), or `not taken` (it leaves a part of an input or output alone); `detail`
    says why.
    """

    size: int
    verdict: Literal["right", "wrong", "refused", "crashed", "not taken"]
    detail: str = ""


class Against(_Model):
    """The kernel of `--against`: `right`, `fails` (the task, itself: no speed-up is given), or `not run`; `detail` says why,
    and `right_at` at which sizes its values were judged and are right. A record has none where the kernel itself fails.
    """

    file: str
    verdict: Literal["right", "fails", "not run"]
    detail: str = ""
    right_at: list[int] = []


class Printed(_Model):
    """What the kernel's file wrote itself; the middle of long output is left out."""

    stdout: str = ""
    stderr: str = ""
    stdout_bytes: int = 0
    stderr_bytes: int = 0


class Record(_Model):
    """The whole judgement.

    `verdict` is `pass` or `failed at stage X`; `score` is the mean score of `times`, 0 if it failed; `diagnosis` says what a
    wrong output is; `seed` repeats the inputs with `--seed`. `right_at` are the sizes whose values were judged and are right.
    """

    schema_version: int = SCHEMA_VERSION
    verdict: str
    passed: bool
    stage: Stage | None
    sentence: str
    file: str
    kernel: str
    task: str
    dtype: str
    chip: str
    lnc: int
    seed: int
    score: float
    right_at: list[int] = []
    ragged: Ragged | None = None
    against: Against | None = None
    diagnosis: str = ""
    first_difference: FirstDifference | None = None
    findings: list[Finding]
    warnings: list[str]
    cases: list[Case]
    memory: list[dict[str, Any]]
    times: list[Time]
    printed: Printed
    seconds: dict[str, float]


def schema() -> dict[str, Any]:
    """The JSON schema of a record."""
    return Record.model_json_schema()
