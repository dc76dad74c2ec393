"""The ways in which people run a model around a forward pass, each compared with eager attention run plainly.

python tools/graph_ways.py [part of a way's name ...]      writes docs/ways.md
python tools/graph_ways.py --missing                       only the rows that it lacks, or that other versions wrote
"""

import platform
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from ways_around import in_autocast, in_pipeline, saved_and_loaded, trained_by_trainer
from ways_generation import GENERATIONS, generated, generated_by_itself, generated_with_compiled_forward
from ways_graphs import LENGTHS, compiled, exported, trained
from ways_models import MODELS, Model

import nki_hf

CLOSE = 2e-6  # float32 logits and gradients of tiny models: sums in another order
FEW = ("qwen3", "gemma2, softcap")  # Inductor compiles C++ for every graph, and sees the same op in each model


@dataclass(frozen=True)
class Way:
    """One way.

    Attributes:
      run: the figure of a built model and its row in `MODELS`.
      limit: largest difference that is right; 0 = the same tokens or numbers.
      recompiles: most graphs that may replace one made for other sizes; None = nothing is traced.
      kinds: kinds of models that it exists for.
      models: the only models that are run; empty = all of these kinds.
    """

    run: Callable
    limit: float = CLOSE
    recompiles: int | None = None
    kinds: tuple[str, ...] = ("decoder", "encoder", "encoder-decoder")
    models: tuple[str, ...] = ()

    def has(self, model):
        """True if the model of that name is run this way."""
        return MODELS[model].kind in self.kinds and (not self.models or model in self.models)


_GENERATE = ("decoder", "encoder-decoder")
_AGAIN = {False: 2 * (len(LENGTHS) - 1), True: 0, None: 2}  # by `dynamic`: every length, none, the second one's


def _compile_ways():
    for backend in ("eager", "aot_eager", "inductor"):
        for dynamic in (False, True, None):
            yield (
                f"compile, {backend}, dynamic={dynamic}",
                Way(
                    run=lambda built, row, b=backend, d=dynamic: compiled(built, row.kind, b, d),
                    recompiles=_AGAIN[dynamic],
                    models=FEW if backend == "inductor" else (),
                ),
            )
    for backend in ("aot_eager", "inductor"):
        yield (
            f"compiled training step, {backend}",
            Way(
                run=lambda built, row, b=backend: trained(built, row.kind, b),
                recompiles=0,
                models=FEW if backend == "inductor" else (),
            ),
        )
    for strict in (True, False):
        yield (
            f"export, {'strict' if strict else 'non-strict'}",
            Way(run=lambda built, row, s=strict: exported(built, row.kind, s, row.attentions), recompiles=0),
        )


def _generate_ways():
    for name, options in GENERATIONS.items():
        yield (
            f"generate, {name}",
            Way(run=lambda built, row, o=options: generated(built, o), limit=0, kinds=_GENERATE),
        )
    for backend in ("aot_eager", "inductor"):
        yield (
            f"generate, static cache, compiled by itself, {backend}",
            Way(
                run=lambda built, row, b=backend: generated_by_itself(built, b),
                limit=0,
                recompiles=1,
                kinds=_GENERATE,
                models=FEW if backend == "inductor" else (),
            ),
        )
    for name in ("static", "dynamic"):
        options = GENERATIONS[f"{name} cache"]
        yield (
            f"generate, {name} cache, forward compiled by the user",
            Way(
                run=lambda built, row, o=options: generated_with_compiled_forward(built, o),
                limit=0,
                recompiles=1,
                kinds=_GENERATE,
            ),
        )


WAYS = {
    **dict(_compile_ways()),
    **dict(_generate_ways()),
    "Trainer, gradient checkpointing": Way(run=lambda built, row: trained_by_trainer(built, row.kind)),
    "pipeline": Way(run=lambda built, row: in_pipeline(built, row.kind), limit=0, kinds=("decoder", "encoder")),
    "autocast to bfloat16": Way(run=lambda built, row: in_autocast(built, row.kind), limit=1e-2),
    "save and load again": Way(run=lambda built, row: saved_and_loaded(built, row.kind), limit=0),
}


def cases():
    """Every (model, way) that exists."""
    return [(model, way) for way in WAYS for model in MODELS if WAYS[way].has(model)]


def run(model, way):
    """The figure of one model run one way, strictly: a fallback is an error."""
    row: Model = MODELS[model]
    with nki_hf.using(strict=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return WAYS[way].run(row.build(), row)


PAGE = Path(__file__).parents[1] / "docs" / "ways.md"
_VERSIONS = f"Python {platform.python_version()}, torch {torch.__version__} and Transformers {transformers.__version__}"
_HEADER = f"""# Ways of running a model

Written by `python tools/graph_ways.py` with {_VERSIONS}: tiny models
through the kernels on the simulator, strictly (a fallback is an error), compared with eager attention run plainly.
`pytest -m slow tests/adapters/test_graphs_compile.py` runs the same with limits.

* Difference: the largest absolute one of logits, gradients (compiled training step) or weights after three steps (Trainer), in
  float32; for `generate` and pipelines, how many tokens differ; for autocast, by how much the error against float32 exceeds
  eager's. Rows of padding see no key, so eager and kernels differ there (sdpa and kernels do not). The padding is on the left,
  where in decoders its last row predicts the first real token: labels are -100 at the padding and at that token too.
* Breaks: graph breaks. Graphs: what Dynamo compiled. Recompiles: those of them that replaced one made for other sizes.
  `compile` runs three lengths, each with and without padding, which are two graphs. `export` runs one program at three batch
  sizes and lengths. A dash: nothing is traced. With a dynamic cache Dynamo makes the decode step's length symbolic at the
  second step; sliding layers of a static cache hold their length as a Python number, with eager attention as well.
* Inductor compiles C++ for every graph and sees the same op in every model, so that two models stand for all. Pipelines of
  Transformers 5 have no task for an encoder-decoder.

The choice of an attention is not saved with a model (Transformers' rule): pass `attn_implementation="nki"` to
`from_pretrained` each time, or `model_kwargs={{"attn_implementation": "nki"}}` to a pipeline.

| way | model | difference | breaks | graphs | recompiles |
|---|---|---|---|---|---|
"""


def written(any_versions=False):
    """The rows of the page by (way, model); empty if other versions wrote it, unless `any_versions`."""
    text = PAGE.read_text() if PAGE.exists() else ""
    rows = [line.strip("| ").split(" | ") for line in text.partition("|---|\n")[2].splitlines()]
    return {(row[0], row[1]): row[2:] for row in rows if any_versions or _VERSIONS in text}


def main(parts):
    """Write the page, row by row, for the ways whose name holds one of `parts` (none: all; `--missing`: those it lacks)."""
    if parts != ["--missing"] and parts and not any(part in way for _, way in cases() for part in parts):
        sys.exit(f"{' '.join(parts)} is part of no way: {', '.join(sorted({way for _, way in cases()}))}.")
    rows = written()
    for model, way in cases():
        if (way, model) in rows if parts == ["--missing"] else parts and not any(part in way for part in parts):
            continue
        figure = run(model, way)
        counted = ["-" if value is None else str(value) for value in (figure.breaks, figure.graphs, figure.recompiles)]
        rows[way, model] = [f"{figure.difference:.2g}", *counted]
        lines = [f"| {' | '.join((way, model, *rows[way, model]))} |\n" for model, way in cases() if (way, model) in rows]
        PAGE.write_text(_HEADER + "".join(lines))
        print(way, "|", model, *rows[way, model], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
