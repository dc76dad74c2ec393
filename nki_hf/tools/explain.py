"""`nki_hf explain`: which kernel each attention layer of a model, or one call, would run, its tiles, and why nothing else."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from nki_hf.dispatch import Decision, decide
from nki_hf.errors import require
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen
from nki_hf.tools.shape import SHAPE_HELP, problem_of
from nki_hf.tools.support_table import support_table

__all__ = ["VERB", "ExplainRow", "command", "run", "run_shape"]

VERB = "explain"
_MODEL, _SEQLEN, _DTYPE = "qwen3", 2048, "bfloat16"


@dataclass(frozen=True, kw_only=True)
class ExplainRow:
    """One layer in one phase.

    Attributes:
      layer: class and number of the attention layer.
      phase: `prefill` or `decode` (see `Decision.phase`).
      kernel: what runs it: a kernel's name, or torch's `sdpa` or `eager`.
      backend: `simulator`, or `torch` for a fallback.
      calls: attention calls of the layer in this phase.
      shape: `batch x heads q/kv x seqlen q/kv x head_dim`, in words of the problem.
      mask: what the kernel is told about the mask.
      tiles: the kernel's tile sizes.
      entry: the function of the kernel's module that runs, where it has several; else empty.
      why: what made dispatch prefer the kernel to others that take the call; empty if there are none.
      reasons: why no kernel runs it; empty if one does.
    """

    layer: str
    phase: str
    kernel: str
    backend: str
    calls: int
    shape: str
    mask: str
    tiles: dict[str, Any]
    reasons: list[str]
    entry: str = ""
    why: str = ""


def run(
    model: str,
    *,
    seqlen: int = 2048,
    batch: int = 1,
    chip: str = "trn2",
    dtype: str = "bfloat16",
    padded: bool = False,
    decode: bool = True,
    trust_remote_code: bool = False,
) -> list[ExplainRow]:
    """Rows of every attention layer of a causal language model, for a prefill and one decode step.

    The model is built from its configuration alone and run on torch's meta device with its attention recorded: nothing is
    loaded or computed.

    Args:
      model: a hub id, a folder with a config.json, or a model type of Transformers (its default configuration).
      seqlen: tokens of the prompt.
      batch: prompts.
      chip: trn1, trn2 or trn3.
      dtype: bfloat16, float16 or float32.
      padded: True = the first prompt is half as long and padded on the left.
      decode: True adds the rows of one more token after the prompt.
      trust_remote_code: True lets code that comes with the model run; one line on standard error names its files.

    Raises:
      BackendUnavailable: torch or transformers is missing.
      ValueError: the model or the dtype is not known, a size is out of range, the model needs code of its own that is not
        trusted, or no attention of the model reaches Transformers' interface.
    """
    require("nki_hf explain", "hf", "torch", "transformers")
    from nki_hf.adapters.dry_run import dry_run

    rows = dry_run(
        model,
        seqlen=seqlen,
        batch=batch,
        chip=chip,
        dtype=dtype,
        padded=padded,
        decode=decode,
        trust_remote_code=trust_remote_code,
    )
    return [_row(row.layer, row.calls, row.first) for row in rows]


def run_shape(shape: str, *, chip: str = "trn2") -> ExplainRow:
    """The row of one call without a model: what the simulator would run for it.

    Args:
      shape: the call in the words of `--shape` (see `nki_hf.tools.shape`).
      chip: trn1, trn2 or trn3.

    Raises:
      ValueError: a word or the chip is not known.
    """
    problem = problem_of(shape)
    fallback = "sdpa" if problem.softcap is None and not problem.sink else "eager"  # what sdpa lacks
    return _row("attention", 1, decide(problem, backend="simulator", chip=chip, fallback=fallback))


def command(
    model: Annotated[str, typer.Option(help="Hub id, folder with a config.json, or model type such as qwen3.")] = _MODEL,
    shape: Annotated[str, typer.Option(help=f"One call instead of a model. {SHAPE_HELP}")] = "",
    seqlen: Annotated[int, typer.Option(help="Tokens of the prompt.")] = _SEQLEN,
    batch: Annotated[int, typer.Option(help="Prompts.")] = 1,
    chip: Annotated[str, typer.Option(help="trn1, trn2 or trn3.")] = "trn2",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = _DTYPE,
    padded: Annotated[bool, typer.Option(help="Left-pad the first prompt by half.")] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let code that comes with the model run, with all of your rights.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    support: Annotated[bool, typer.Option(help="Print the support table of the documentation instead.")] = False,
) -> None:
    """Show per attention layer of a model, or for one call, which kernel runs it, or why none does."""
    if support:
        print(support_table(), end="")
        return
    if shape:
        if (model, seqlen, batch, dtype, padded) != (_MODEL, _SEQLEN, 1, _DTYPE, False):
            raise ValueError(f"shape={shape!r} is one call: leave out --model, --seqlen, --batch, --dtype and --padded.")
        rows = [run_shape(shape, chip=chip)]
    else:
        with working(f"nki_hf explain --model {model}"):
            rows = run(
                model, seqlen=seqlen, batch=batch, chip=chip, dtype=dtype, padded=padded, trust_remote_code=trust_remote_code
            )
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    table = Table(
        "layers",
        "phase",
        "runs",
        "calls",
        "shape",
        "mask",
        "tiles or reasons",
        title=f"{model} on {chip}" + ("" if shape else f", {dtype}"),
    )
    for names, row in _grouped(rows):
        tiles = ", ".join(f"{name}={value:,}" for name, value in row.tiles.items())
        ran = f"torch {row.kernel}" if row.reasons else row.entry or row.kernel
        said = [tiles, row.why] if row.why else [tiles]
        table.add_row(names, row.phase, ran, str(row.calls), row.shape, row.mask, "; ".join(row.reasons or said))
    screen = Screen()
    screen.show(table)
    fallbacks = sum(row.calls for row in rows if row.reasons)
    calls = sum(row.calls for row in rows)
    screen.say("", f"{calls:,} attention calls, {fallbacks:,} of them run torch instead of a kernel.")


def _grouped(rows: list[ExplainRow]) -> list[tuple[str, ExplainRow]]:
    """Layers that differ in their number only, as one line: `Qwen3Attention 0-2`."""
    groups: dict[tuple[Any, ...], tuple[list[str], ExplainRow]] = {}
    for row in rows:
        name, _, number = row.layer.rpartition(" ")
        key = (
            name,
            row.phase,
            row.kernel,
            row.calls,
            row.shape,
            row.mask,
            tuple(row.tiles.items()),
            tuple(row.reasons),
            row.why,
        )
        groups.setdefault(key, ([], row))[0].append(number if name else row.layer)
    return [(f"{key[0]} {_ranges(numbers)}".strip(), row) for key, (numbers, row) in groups.items()]


def _ranges(numbers: list[str]) -> str:
    """`0-4, 6` for 0, 1, 2, 3, 4, 6."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and number.isdigit() and runs[-1][-1].isdigit() and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _row(layer: str, calls: int, decision: Decision) -> ExplainRow:
    problem, mask = decision.problem, decision.problem.mask
    parts = [f"{name} {value}" for name, value in (("ahead", mask.ahead), ("window", mask.window)) if value is not None]
    if parts:
        parts.append(f"offset {mask.q_offset}")
    return ExplainRow(
        layer=layer,
        phase=decision.phase,
        kernel=decision.kernel,
        backend=decision.backend,
        calls=calls,
        shape=(
            f"{problem.batch} x {problem.num_heads_q}/{problem.num_heads_kv} x {problem.seqlen_q:,}/{problem.seqlen_kv:,}"
            f" x {problem.head_dim}" + (f"/{problem.head_dim_v}" if problem.head_dim_v != problem.head_dim else "")
        ),
        mask=": ".join([mask.form, ", ".join(parts)] if parts else [mask.form]),
        tiles=dict(decision.tiles),
        reasons=[str(reason) for reason in decision.rejected] if decision.fallback else [],
        entry="" if decision.plan is None else decision.plan.entry,
        why=decision.why,
    )
