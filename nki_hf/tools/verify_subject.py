"""What is verified: a kernel loaded from a file, how its arguments are made from generated inputs, and its reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf.chips import Chip
from nki_hf.errors import Reason, UnsupportedProblem
from nki_hf.kernels.binding import Binding
from nki_hf.kernels.call_tensors import TENSORS
from nki_hf.kernels.packing import packing
from nki_hf.kernels.plan import Plan, Target
from nki_hf.kernels.registry import binding_of, bindings
from nki_hf.lang import features
from nki_hf.problem import Problem
from nki_hf.sim.run.launch import Kernel
from nki_hf.testing import AttentionInputs, attention_inputs
from nki_hf.tools.numpy_layouts import NumpyArrays
from nki_hf.tools.verify_case import Array, Case, Expected
from nki_hf.tools.verify_inputs import array_inputs
from nki_hf.tools.verify_judge import unit_roundoff
from nki_hf.tools.verify_load import UsageError, check_call, describe, parameters
from nki_hf.tools.verify_oracle import oracle

__all__ = ["ArraySubject", "AttentionSubject", "DTYPES", "LAYOUT", "layout_of"]


DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
}
_LETTERS = {"batch": "b", "num_heads": "h", "seqlen": "s", "head_dim": "d"}  # by the beginning of an axis's name


def layout_of(binding: Binding) -> dict[str, str]:
    """Axes of q, k, v, out and lse of a kernel as letters: batch, heads, sequence, head_dim."""
    axes = {**{item.name: item.axes for item in binding.arguments}, **{item.name: item.axes for item in binding.outputs}}
    shown = {name: axes[name] for name in ("q", "k", "v", "out", "lse")}
    return {
        name: "".join(letter for axis in each for begin, letter in _LETTERS.items() if axis.startswith(begin))
        for name, each in shown.items()
    }


LAYOUT = layout_of(bindings("forward")[0])
"""The layout of a kernel that has no binding, unless it is given: that of the first of ours. A letter left out is an axis of
size 1 that is not there."""


def _computed(reference: Callable[..., Any], arguments: Mapping[str, Any]) -> list[Array]:
    """What the given reference returns, one array per output."""
    check_call("reference", reference, arguments)
    try:
        given = reference(**arguments)
    except (Exception, SystemExit) as error:  # whatever the caller's code raises
        raise UsageError(f"the reference raised {describe(error)}: it must compute every case.") from error
    return [np.asarray(item) for item in (given if isinstance(given, tuple | list) else (given,))]


def _name(kernel: Any) -> str:
    return str(getattr(kernel.function if isinstance(kernel, Kernel) else kernel, "__name__", ""))


@dataclass(frozen=True, kw_only=True)
class AttentionSubject:
    """An attention kernel `kernel(q, k, v, ...)` that returns `out` or `(out, lse)`.

    Attributes:
      kernel: the kernel. One that has a binding (see `registry.binding_of`) is planned and called by it, with the bounds,
        bias and sink of the problem; another one gets those as they are, in parameters lo, hi, bias and sink.
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
        constants = dict(self.constants)
        arguments: dict[str, Any]
        certifies = False
        if self.binding is not None:
            plan = self._plan(self.binding)
            arguments = _packed(self.binding, plan, inputs)
            # the entry without a loop of run time, where the plan's has one for what fails the certificate
            certifies = _name(self.kernel) != plan.entry and {"count_failed", "exact"} <= set(parameters(self.kernel))
            constants = {**plan.constants, **constants, **({"count_failed": True} if certifies else {})}
        else:
            arguments = {name: self._to_kernel(name, getattr(inputs, name)) for name in ("q", "k", "v")}
            arguments |= self._given(inputs)
        rounding = 4 * unit_roundoff(self.problem.dtype)
        if self.reference is not None:
            exact = {n: a if a.dtype.kind in "bi" else a.astype(np.float64) for n, a in arguments.items()}
            outputs = _computed(self.reference, {**exact, **self.constants})
            types = {0: DTYPES[self.problem.dtype], 1: np.dtype(np.float32)}
            expected = [
                Expected(
                    name=("out", "lse")[i] if i < 2 else f"output {i}",
                    reference=array,
                    tolerance=self.rtol or rounding,
                    dtype=types.get(i),
                )
                for i, array in enumerate(outputs)
            ]
        else:
            known = oracle(inputs)
            scores = float(np.abs(known.lse[np.isfinite(known.lse)]).max(initial=1.0))
            rounding += 4 * unit_roundoff("float32") * scores  # of the scores, which exp turns into a relative error
            expected = [
                Expected(
                    name=name,
                    reference=self._to_kernel(name, exact),
                    dtype=dtype,
                    tolerance=self.rtol or 2 * error + rounding,
                    scale=np.linalg.norm(self._to_kernel("out", np.broadcast_to(size[..., None], exact.shape)), axis=-1)
                    / np.sqrt(exact.shape[-1])
                    if name == "out"
                    else 0.0,
                )
                for name, exact, error, size, dtype in zip(
                    ("out", "lse"),
                    (known.out, known.lse),
                    known.errors,
                    (known.size, np.zeros(1)),
                    (DTYPES[self.problem.dtype], np.dtype(np.float32)),
                    strict=True,
                )
            ]
        return Case(
            arguments={**arguments, **constants},
            expected=expected,
            certifies=certifies,
            optional=1 if self.reference is None and not certifies else 0,
        )

    @functools.cached_property
    def binding(self) -> Binding | None:
        """How the kernel is called, if it is one of ours or has their parameters."""
        return binding_of(_name(self.kernel), parameters(self.kernel))

    @property
    def taken(self) -> bool:
        """True unless the kernel's binding refuses the problem."""
        return self.binding is None or isinstance(self._planned(self.binding), Plan)

    def _planned(self, binding: Binding) -> Plan | tuple[Reason, ...]:
        return binding.plan(self.problem, Target(chip=self.chip, lnc=self.lnc, features=features("simulator")))

    def _plan(self, binding: Binding) -> Plan:
        if binding.kind != "forward":
            raise UsageError(
                f"{binding.name} computes gradients, for which verify has no inputs: compare it with "
                "nki_hf.kernels.reference.attention_gradients in a test, or give its arrays with --arg and a --reference."
            )
        plan = self._planned(binding)
        if not isinstance(plan, Plan):
            raise UsageError(str(UnsupportedProblem(plan)))
        return plan

    def _given(self, inputs: AttentionInputs) -> dict[str, Array]:
        """The tensors that the shape's words bounds, bias, mask and sink ask for, as they are (`AttentionInputs`)."""
        given = {name: array for name, array in inputs.masks.items() if array is not None}
        if missing := sorted(set(given) - set(parameters(self.kernel))):
            raise UsageError(
                f"the shape has tensors for which the kernel has no parameter: {', '.join(missing)}. A kernel of one's own "
                "takes bounds as lo and hi, a bias or mask as bias, a sink as sink; leave out the word, or use --arg."
            )
        return given

    def _to_kernel(self, name: str, array: Array) -> Array:
        """`[batch, heads, seqlen(, head_dim)]` in the kernel's order of axes."""
        layout = self.layout if self.binding is None else layout_of(self.binding)
        axes, letters = layout[name], "bhsd"[: array.ndim]
        for letter, size in zip(letters, array.shape, strict=True):
            if letter not in axes and size != 1:
                raise UsageError(f"layout {name}={axes} leaves out axis {letter} of size {size}: name it, or make it 1.")
        kept = array.squeeze(tuple(i for i, letter in enumerate(letters) if letter not in axes))
        remaining = [letter for letter in letters if letter in axes]
        return np.ascontiguousarray(kept.transpose([remaining.index(letter) for letter in axes]))


def _packed(binding: Binding, plan: Plan, inputs: AttentionInputs) -> dict[str, Array]:
    """The tensors of a kernel of ours, dense."""
    tensors = {name: getattr(inputs, name, None) for name in TENSORS}
    found = packing(binding, inputs.problem, plan)(tensors, NumpyArrays(), fill=True)
    return {name: np.ascontiguousarray(array) for name, array in found.items() if array is not None}


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
