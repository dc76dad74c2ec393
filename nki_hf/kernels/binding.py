"""Binding: the calling contract of one kernel as a table. Whoever calls a kernel reads it here, and nowhere else.

A kernel is a folder of `nki_hf/kernels` with `kernel.py` (NKI), `call.py` (its `BINDING`) and what it needs to plan, and one
line in `registry.PACKAGES`. From the table come: torch and NumPy packing (`packing.pack`), shapes alone (`shapes`), fake
outputs (`output_shapes`), parts for threads and for launches (`division.parts`), the layout that `nki_hf verify` prints, the
subjects of reports. Example, a decode kernel that reads the cache as it lies:

    HEADS_KV = ("batch", "num_heads_kv", "seqlen_kv", "head_dim")

    BINDING = Binding(
        name="flash_decode",
        package="nki_hf.kernels.flash_decode",
        arguments=(
            Argument(name="q", axes=("batch", "num_heads_q", "head_dim", "seqlen_q")),
            Argument(name="k", axes=HEADS_KV, padding=0.0),
            Argument(name="v", axes=(*HEADS_KV[:3], "head_dim_v"), padding=0.0),
            Argument(name="hi", axes=("batch", "seqlen_q"), dtype="int32", broadcast=("batch",)),  # live lengths
            Argument(name="sink", axes=("1", "num_heads_q"), dtype="float32", optional=True),
        ),
        outputs=(
            Output(name="out", axes=("batch", "seqlen_q", "num_heads_q", "head_dim_v")),
            Output(name="lse", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32"),
            Output(name="way", axes=("batch", "num_heads_kv", "chunks"), dtype="int32", optional=True),
        ),
        constants=("section", "softmax_scale", "softcap"),
        division=Division(axes=("batch", "num_heads_kv"), worth={"seqlen_kv": 4096}),
        plan=plan,  # (problem, target) -> Plan, or the Reasons why not
        cost=lambda problem, plan, target: Cost(us=..., why="keys and values are read once per group"),
    )

    def plan(problem: Problem, target: Target) -> Plan | tuple[Reason, ...]:
        if problem.seqlen_q > 8:
            return (Reason(kernel="flash_decode", field="seqlen_q", value=str(problem.seqlen_q), limit="must be 1 to 8"),)
        bucket = -(-problem.seqlen_kv // 512) * 512  # a growing cache keeps its kernel
        passed = {"hi", "sink"} if problem.sink else {"hi"}
        return Plan(
            entry="flash_decode_loop" if "loops" in target.features else "flash_decode",
            constants={"section": 2048, "softmax_scale": problem.scale, "softcap": problem.softcap},
            sizes={"seqlen_kv": bucket, "chunks": -(-bucket // 2048)},
            passed=frozenset(passed), tiles={"section": 2048}, instructions=20 * bucket // 512,
        )

A backward kernel has `kind="backward"`: its arguments name `dout`, `out`, `lse` as well, its outputs are `dq`, `dk`, `dv`, ...,
and an output that lacks a divided axis (`dsink` lacks `batch`) names it in `summed`, so that parts are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nki_hf.errors import Reason
from nki_hf.kernels.call_tensors import TENSORS
from nki_hf.kernels.plan import Cost, Plan, Target, Tuned
from nki_hf.problem import Problem

__all__ = ["Argument", "Binding", "Division", "Output", "Rows"]


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One tensor argument of a kernel.

    Attributes:
      name: the kernel's parameter, and the tensor of `TENSORS` that it is made of.
      axes: its axes, outermost first: sizes of `Problem`, sizes that the plan adds, or `1`.
      dtype: `problem` = the problem's; `mask` = uint8 for a boolean bias and float32 for an additive one; else the dtype.
      broadcast: axes that may have size 1 for all (see `Binding.shapes` for when they have).
      padding: what fills the argument where the plan's size of an axis is larger than the call's; 0 is filled in by the back
        end, which copies anyway; None = no axis may be longer.
      hidden: what stands for -inf, where the kernel knows none; None = -inf may arrive.
      lowest: values are raised to it, so that finite ones differ from `hidden`; a number, or one for each problem.
      optional: the plan says in `Plan.passed` whether the kernel gets it; else it gets None.
    """

    name: str
    axes: tuple[str, ...]
    dtype: str = "problem"
    broadcast: tuple[str, ...] = ()
    padding: float | None = None
    hidden: float | None = None
    lowest: float | Callable[[Problem], float] | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        if self.name not in TENSORS:
            raise ValueError(f"name={self.name!r} is no tensor of a call: it is one of {', '.join(TENSORS)}.")
        if missing := [axis for axis in TENSORS[self.name] if axis not in self.axes]:
            raise ValueError(f"{self.name} lacks the axes {', '.join(missing)}: an argument has all axes of its tensor.")


@dataclass(frozen=True, kw_only=True)
class Output:
    """One tensor that a kernel returns, dense.

    Attributes:
      name: what it is, in the words of `TENSORS` where it is one of them.
      axes: as in `Argument`.
      dtype: `problem`, or the dtype.
      broadcast: axes of size 1 where those of the bias are (`dbias`).
      summed: axes that it lacks, along which the results of parts are added up instead of put beside each other.
      optional: it is returned only if the plan names it in `Plan.passed`.
    """

    name: str
    axes: tuple[str, ...]
    dtype: str = "problem"
    broadcast: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How the query rows of one head are divided over launches, if even one head is too long for one.

    Attributes:
      runs: `(constants, seqlen_q, instructions)` -> rows `[begin, end)` of each launch, of at most so many instructions, or as
        few rows as the kernel can run.
      constants: `(constants, begin, end, lnc)` -> the constants of the launch of these rows.
    """

    runs: Callable[[Mapping[str, Any], int, int], Sequence[tuple[int, int]]]
    constants: Callable[[Mapping[str, Any], int, int, int], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Division:
    """Along what a call may be taken apart; all parts of a call have equal shapes.

    Attributes:
      axes: axes whose entries share nothing, outermost first. `num_heads_kv` takes its query heads along.
      group: True if the query heads of one kv head are independent too; each part then reads keys and values for itself.
      rows: how rows are divided; None = they are not.
      worth: sizes from which on threads pay, and a division of the group. One of them is enough.
    """

    axes: tuple[str, ...] = ()
    group: bool = False
    rows: Rows | None = None
    worth: Mapping[str, int] = field(default_factory=dict)


def _no_cost(problem: Problem, plan: Plan, target: Target) -> Cost:
    del problem, plan, target
    return Cost(us=float("inf"), why="no estimate")


def _scores(problem: Problem) -> int:
    return problem.batch * problem.num_heads_q * -(-problem.seqlen_q // 128) * -(-problem.seqlen_kv // 512) * 16


@dataclass(frozen=True, kw_only=True)
class Binding:
    """One kernel as everything outside of its folder sees it.

    Attributes:
      name: the kernel.
      package: its folder as a dotted name; the NKI source is `<package>.kernel`.
      arguments, outputs: in the kernel's order; the constants follow the arguments.
      constants: names of the compile-time arguments, in order. Those that are called softmax_scale, softcap, q_offset, window
        and ahead are those of `Problem`.
      plan: `(problem, target) -> Plan`, or why not.
      cost: `(problem, plan, target) -> Cost`; kernels without an estimate come last, in the registry's order.
      division: along what a call may be taken apart.
      instructions: about how many instructions the kernel has for a problem, known quickly for any size; used before a
        problem is planned.
      kind: `forward` or `backward`: kernels of one kind stand in for each other.
      live: `(events, problem, plan) -> events` as they are if every key of the problem is there: transfers that the kernel
        skips at run time move nothing. None = it skips none.
      tuned: its plan constants that a tuner may choose; None = they follow from the problem alone.
      phase: `decode` if it takes nothing but the few query rows of decoding, else `prefill`: what reports call its calls.
    """

    name: str
    package: str
    arguments: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    constants: tuple[str, ...]
    plan: Callable[[Problem, Target], Plan | tuple[Reason, ...]]
    cost: Callable[[Problem, Plan, Target], Cost] = _no_cost
    division: Division = field(default_factory=Division)
    instructions: Callable[[Problem], int] = _scores
    kind: str = "forward"
    live: Callable[[Sequence[Any], Problem, Plan], Sequence[Any]] | None = None
    tuned: Tuned | None = None
    phase: str = "prefill"

    def __post_init__(self) -> None:
        divided = {*self.division.axes, *(["num_heads_q"] if self.division.group else [])}
        for item in self.outputs:
            heads = "num_heads_kv" if "num_heads_kv" in item.axes else "num_heads_q"
            for axis in divided - set(item.axes) - set(item.summed):
                if not (axis == "num_heads_kv" and heads in item.axes):
                    raise ValueError(f"{item.name} lacks the divided axis {axis}: it has it, or names it in summed.")

    @property
    def module(self) -> str:
        """Dotted name of the NKI source."""
        return f"{self.package}.kernel"

    def sizes(self, problem: Problem, plan: Plan) -> dict[str, int]:
        """Size of each axis as the kernel sees it."""
        known = {axis: getattr(problem, axis) for axes in TENSORS.values() for axis in axes}
        return {**known, "1": 1, **plan.sizes}

    def passed(self, plan: Plan) -> tuple[Argument, ...]:
        """The arguments that are tensors and not None."""
        return tuple(item for item in self.arguments if not item.optional or item.name in plan.passed)

    def returned(self, passed: Collection[str]) -> tuple[Output, ...]:
        """The outputs that the kernel returns if it gets `passed` (see `Plan`)."""
        return tuple(item for item in self.outputs if not item.optional or item.name in passed)

    def shapes(self, problem: Problem, plan: Plan, batch_bounds: int = 1) -> dict[str, tuple[tuple[int, ...], str] | None]:
        """Shape and dtype of each argument, None for one that is left out.

        Args:
          problem, plan: the call.
          batch_bounds: batch axis of lo and hi, which `Problem` does not say: 1 or its batch.
        """
        given = {item.name for item in self.passed(plan)}
        return {
            item.name: (self._shape(item, problem, plan, batch_bounds), _dtype(item.dtype, problem))
            if item.name in given
            else None
            for item in self.arguments
        }

    def output_shapes(self, problem: Problem, plan: Plan) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each output that is returned, by name."""
        return {
            item.name: (self._shape(item, problem, plan, 1), _dtype(item.dtype, problem)) for item in self.returned(plan.passed)
        }

    def _shape(self, item: Argument | Output, problem: Problem, plan: Plan, batch_bounds: int) -> tuple[int, ...]:
        sizes, mask = self.sizes(problem, plan), problem.mask
        kept = {"batch": mask.bias_batch, "num_heads_q": mask.bias_heads, "seqlen_q": mask.bias_rows}
        if item.name in ("lo", "hi"):
            kept = {"batch": batch_bounds > 1}
        return tuple(1 if axis in item.broadcast and not kept.get(axis) else sizes[axis] for axis in item.axes)


def _dtype(word: str, problem: Problem) -> str:
    if word == "mask":
        return "uint8" if problem.mask.bias == "boolean" else "float32"
    return problem.dtype if word == "problem" else word
