"""What is verified: a kernel loaded from a file, how its arguments are made from generated inputs, and its reference."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.chips import Chip
from nki_hf.kernels import reference
from nki_hf.kernels.flash_prefill.plan import PrefillPlan, plan_prefill
from nki_hf.problem import Problem
from nki_hf.sim.as_nki import as_nki
from nki_hf.sim.launch import Kernel
from nki_hf.testing import AttentionInputs, attention_inputs, plain_attention
from nki_hf.tools.verify_inputs import array_inputs
from nki_hf.tools.verify_judge import row_error, unit_roundoff

__all__ = [
    "DTYPES", "LAYOUT", "ArraySubject", "AttentionSubject", "Case", "Expected", "UsageError", "check_call", "describe",
    "load_callable", "parameters", "position",
]  # fmt: skip

Array = np.ndarray[Any, Any]

DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
}
_MACHINERY = tuple(
    str(Path(__file__).resolve().parents[1] / part) for part in ("sim/", "tools/verify", "observers/")
)  # fmt: skip
LAYOUT = {"q": "bhds", "k": "bhds", "v": "bhsd", "out": "bshd", "lse": "bhs"}
"""Axes of `flash_prefill`: batch, heads, sequence, head_dim. A letter left out is an axis of size 1 that is not there."""


class UsageError(ValueError):
    """The command was used wrongly; the message says what is allowed."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One output: its name, reference, allowed row error, the size that errors are relative to at least (see
    `verify_judge.row_error`), and its element type (None = any).
    """

    name: str
    reference: Array
    tolerance: float
    scale: Array | float = 0.0
    dtype: np.dtype[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call: the kernel's keyword arguments, and what it must return; the last `optional` outputs may be missing."""

    arguments: Mapping[str, Any]
    expected: Sequence[Expected]
    optional: int = 0


def load_callable(spec: str) -> Any:
    """The object that `PATH:NAME` or `MODULE:NAME` stands for; files may import `nki` or `nki_hf.lang`.

    Raises:
      UsageError: no such file, module or name.
    """
    place, separator, name = spec.rpartition(":")
    if not separator or not place or not name:
        raise UsageError(f"{spec!r} names no object: write PATH:NAME, e.g. my_kernel.py:attention.")
    with as_nki():
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{place} has no function {name!r}: it has {', '.join(known) or 'none'}.")
    return found


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise UsageError(f"module {name!r} does not exist: give a module or the path of a .py file.") from error
        raise _not_imported(name, error) from error
    except (Exception, SystemExit) as error:  # whatever the module's own code raises
        raise _not_imported(name, error) from error


def _not_imported(name: str, error: BaseException) -> UsageError:
    return UsageError(f"{name} cannot be imported: {describe(error)}. Make the file run on its own first.")


def describe(error: BaseException) -> str:
    """`ValueError: text (file:line)`, with the innermost line outside of this package's own machinery."""
    file, line = position(error)
    text = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    return f"{text} ({file}:{line})" if file else text


def position(error: BaseException) -> tuple[str, int]:
    """File and line of the code that raised `error`, callers of the simulator instead of the simulator."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    found = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    outside = [item for item in found if not item[0].startswith((*_MACHINERY, "<"))]
    return (outside or found or [("", 0)])[-1]


def check_call(what: str, function: Any, arguments: Mapping[str, Any]) -> None:
    """Raise a UsageError if `function` cannot be called with these keyword arguments."""
    try:
        inspect.signature(function.function if isinstance(function, Kernel) else function).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"the {what} cannot be called with {', '.join(arguments)}: {error}. Describe its parameters with --arg and --const."
        ) from error


def _computed(reference: Callable[..., Any], arguments: Mapping[str, Any]) -> list[Array]:
    """What the given reference returns, one array per output."""
    check_call("reference", reference, arguments)
    try:
        given = reference(**arguments)
    except (Exception, SystemExit) as error:  # whatever the caller's code raises
        raise UsageError(f"the reference raised {describe(error)}: it must compute every case.") from error
    return [np.asarray(item) for item in (given if isinstance(given, tuple | list) else (given,))]


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"{path} is not a file: give the path of a .py file.")
    name = f"nki_hf_verified_{path.stem}_{abs(hash(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as a Python module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that inspect finds the source of the kernel's functions
    sys.path.insert(0, str(path.parent))  # files beside it are importable, as if it were run
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the file's own code raises
        raise _not_imported(str(path), error) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def parameters(kernel: Any) -> tuple[str, ...]:
    """Names of the kernel's parameters."""
    function = kernel.function if isinstance(kernel, Kernel) else kernel
    return tuple(inspect.signature(function).parameters)


@dataclass(frozen=True, kw_only=True)
class AttentionSubject:
    """An attention kernel `kernel(q, k, v, ...)` that returns `out` or `(out, lse)`.

    Attributes:
      kernel: the kernel. One that is told its plan (`spans`, ...) gets it, with the bounds, bias and sink of the problem.
      problem: sizes, dtype, scale, softcap and mask.
      chip, lnc: what the plan is for.
      layout: axes of q, k, v, out and lse; see `LAYOUT`.
      constants: further arguments.
      reference: callable on the kernel's q, k, v (float64) and constants; None = the float64 oracle.
      rtol: allowed row error; None = twice the error of a plain float32 run on the same inputs, plus four roundings of the
        dtype (weights and output are rounded to it), plus four of the largest score in float32.
    """

    kernel: Any
    problem: Problem
    chip: Chip
    lnc: int = 1
    layout: Mapping[str, str] = field(default_factory=lambda: dict(LAYOUT))
    constants: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    rtol: float | None = None

    def case(self, distribution: str, seed: int) -> Case:
        """The call for one distribution."""
        inputs = attention_inputs(self.problem, seed=seed, distribution=distribution)
        arguments: dict[str, Any] = {name: self._to_kernel(name, getattr(inputs, name)) for name in ("q", "k", "v")}
        rounding = 4 * unit_roundoff(self.problem.dtype)
        if self.reference is not None:
            exact = {name: array.astype(np.float64) for name, array in arguments.items()}
            outputs = _computed(self.reference, {**exact, **self.constants})
            types = {0: DTYPES[self.problem.dtype], 1: np.dtype(np.float32)}
            expected = [
                Expected(
                    name=("out", "lse")[i] if i < 2 else f"output {i}", reference=array, tolerance=self.rtol or rounding,
                    dtype=types.get(i),
                )
                for i, array in enumerate(outputs)
            ]  # fmt: skip
        else:
            wide = replace(
                inputs, problem=replace(self.problem, dtype="float32"), q=inputs.q.astype(np.float32),
                k=inputs.k.astype(np.float32), v=inputs.v.astype(np.float32),
            )  # fmt: skip
            lse = inputs.expected[1]
            scores = float(np.abs(lse[np.isfinite(lse)]).max(initial=1.0))
            rounding += 4 * unit_roundoff("float32") * scores  # of the scores, which exp turns into a relative error
            plain, sizes = plain_attention(wide), (_summed(inputs), np.zeros(1))
            expected = [
                Expected(
                    name=name, reference=self._to_kernel(name, exact), dtype=dtype,
                    tolerance=self.rtol or float(2 * row_error(run, exact, size).max() + rounding),
                    scale=np.linalg.norm(self._to_kernel("out", np.broadcast_to(size[..., None], exact.shape)), axis=-1)
                    / np.sqrt(exact.shape[-1]) if name == "out" else 0.0,
                )
                for name, exact, run, size, dtype in zip(
                    ("out", "lse"), inputs.expected, plain, sizes, (DTYPES[self.problem.dtype], np.dtype(np.float32)),
                    strict=True,
                )
            ]  # fmt: skip
        constants = dict(self.constants)
        if {"spans", "q_rows", "section"} <= set(parameters(self.kernel)):
            plan = plan_prefill(self.problem, self.chip, self.lnc)
            arguments, constants = _planned(inputs, plan, arguments), {**plan.constants(), **constants}
        return Case(
            arguments={**arguments, **constants}, expected=expected, optional=1 if self.reference is None else 0
        )  # fmt: skip

    def _to_kernel(self, name: str, array: Array) -> Array:
        """`[batch, heads, seqlen(, head_dim)]` in the kernel's order of axes."""
        axes, letters = self.layout[name], "bhsd"[: array.ndim]
        for letter, size in zip(letters, array.shape, strict=True):
            if letter not in axes and size != 1:
                raise UsageError(f"layout {name}={axes} leaves out axis {letter} of size {size}: name it, or make it 1.")
        kept = array.squeeze(tuple(i for i, letter in enumerate(letters) if letter not in axes))
        remaining = [letter for letter in letters if letter in axes]
        return np.ascontiguousarray(kept.transpose([remaining.index(letter) for letter in axes]))


def _summed(inputs: AttentionInputs) -> Array:
    """Size of what each output row sums, `[batch, heads, seqlen_q]`: sqrt(sum of (weight * value) ** 2).

    Roundings of the weights are independent, so an output errs by that much times their unit, even if the sum cancels.
    """
    problem = inputs.problem
    keys = np.broadcast_to(np.eye(problem.seqlen_kv), (*inputs.k.shape[:2], problem.seqlen_kv, problem.seqlen_kv))
    weights = reference.attention(replace(problem, head_dim_v=problem.seqlen_kv), inputs.q, inputs.k, keys, **inputs.masks)[0]
    values = np.repeat(np.asarray(inputs.v, np.float64), problem.group_size, axis=1)
    return np.asarray(np.sqrt((weights**2 @ values**2).sum(-1)))


def _planned(inputs: AttentionInputs, plan: PrefillPlan, arguments: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors of our own kernel: keys padded to the plan's length, row bounds, bias and sink as it wants them."""
    problem, mask = inputs.problem, inputs.problem.mask
    extra = plan.seqlen_kv - problem.seqlen_kv
    found = dict(arguments)
    found["k"] = np.pad(found["k"], [(0, 0)] * 3 + [(0, extra)])
    found["v"] = np.pad(found["v"], [(0, 0)] * 2 + [(0, extra), (0, 0)])
    if plan.bounds:
        static = np.array([mask.interval(row, problem.seqlen_kv) for row in range(problem.seqlen_q)], np.int32)
        lo, hi = static.reshape(1, -1, 2).transpose(2, 0, 1)
        if inputs.lo is not None and inputs.hi is not None:
            lo, hi = np.maximum(lo, inputs.lo), np.minimum(hi, inputs.hi)
        found["lo"], found["hi"] = np.ascontiguousarray(lo), np.ascontiguousarray(hi)
    if inputs.bias is not None:
        lowest = np.finfo(np.float32).min
        bias = inputs.bias.astype(np.uint8) if mask.bias == "boolean" else np.maximum(inputs.bias, lowest)
        found["bias"] = np.pad(bias, [(0, 0)] * 3 + [(0, extra)])
    if inputs.sink is not None:
        found["sink"] = inputs.sink.reshape(1, -1)
    return found


@dataclass(frozen=True, kw_only=True)
class ArraySubject:
    """Any kernel on generated arrays, with a reference on the same keyword arguments in float64.

    Attributes:
      kernel: the kernel.
      arrays: shape and dtype by argument name.
      constants: further arguments.
      reference: callable on the same names.
      rtol: allowed row error; None = four roundings of the first array's dtype.
      out_dtypes: element type by output; default: the first array's, or any integer where the reference's is one.
    """

    kernel: Any
    arrays: Mapping[str, tuple[tuple[int, ...], str]]
    reference: Callable[..., Any]
    constants: Mapping[str, Any] = field(default_factory=dict)
    rtol: float | None = None
    out_dtypes: Sequence[str] = ()

    def _dtype(self, number: int, array: Array, first: str) -> np.dtype[Any] | None:
        if number < len(self.out_dtypes):
            return DTYPES[self.out_dtypes[number]]
        return DTYPES[first] if array.dtype.kind == "f" else None

    def case(self, distribution: str, seed: int) -> Case:
        """The call for one distribution."""
        made = array_inputs({name: shape for name, (shape, _) in self.arrays.items()}, distribution, seed)
        arguments = {name: made[name].astype(DTYPES[dtype]) for name, (_, dtype) in self.arrays.items()}
        exact = {name: array.astype(np.float64) for name, array in arguments.items()}
        outputs = _computed(self.reference, {**exact, **self.constants})
        first = next(iter(self.arrays.values()), ((), "float32"))[1]
        tolerance = self.rtol if self.rtol is not None else 4 * unit_roundoff(first) if first != "float32" else 1e-5
        expected = [
            Expected(name=f"output {i}", reference=array, tolerance=tolerance, dtype=self._dtype(i, array, first))
            for i, array in enumerate(outputs)
        ]
        return Case(arguments={**arguments, **self.constants}, expected=expected)
