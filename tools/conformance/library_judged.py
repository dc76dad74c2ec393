"""A launch of nki-library's tests as `nki_hf judge` gets kernels: a user's kernel file, and a task's file with its reference.

The kernel's file imports one kernel of the checkout and calls it with the test's constants, written as source; every array is a
parameter. The task holds the test's inputs and golden outputs, and its tolerance.
"""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

import nki_hf
from nki_hf.sim.dtypes import DType, as_dtype
from nki_hf.tasks import Task
from tools.conformance.case import Skipped
from tools.conformance.compare import Mismatch
from tools.conformance.packed_arrays import is_packed

__all__ = ["judged", "recorded_task"]

_ROOT = Path(__file__).parents[2]
_SECONDS = 170.0


def judged(
    checkout: Path,
    kernel: Any,
    inputs: Mapping[str, Any],
    in_place: Sequence[str],
    expected: Sequence[Any],
    outputs: Sequence[Any],
    tolerance: tuple[float, float],
    chip: str,
    lnc: int,
) -> str:
    """Judge a launch in processes of its own; the judge's sentence.

    Args:
      checkout: the library.
      kernel: its kernel, as its test has it.
      inputs: its arguments by name.
      in_place: those that it may write.
      expected: the test's golden outputs; None: the test brings a validator of its own, and `outputs` stand for them.
      outputs: what the kernel returned in a launch with values; its shapes and element types are those of the task.
      tolerance: relative and absolute, as the library's tests mean them (see compare.py).
      chip, lnc: what it runs on.

    Raises:
      Mismatch: the judge does not pass it.
      Skipped: an argument cannot be written as source, the outputs are nothing that values are judged by, or the kernel's
        Python reads a register (`while register:`), which the judge refuses (docs/writing_kernels.md).
    """
    if any(is_packed(np.asarray(have)) for have in outputs):
        raise Skipped("an output is of a packed type, whose elements are no numbers")
    source = _Source()
    given = ", ".join(f"{name}={source.of(value, name)}" for name, value in inputs.items())
    function = getattr(kernel, "function", kernel)
    called = source.named(inspect.unwrap(function))
    lines = [
        "import sys", f"sys.path.insert(0, {str(_ROOT)!r})", "from pathlib import Path",
        "from tools.conformance.library_harness import install_for_good", f"install_for_good(Path({str(checkout)!r}))",
        "import nki", "import nki.language as nl", "import numpy as np", *sorted(source.imports), "", "",
        "@nki.jit", f"def judged({', '.join(source.arrays)}):", f"    return {called}({given})", "",
    ]  # fmt: skip
    record = {
        "arrays": {name: (array.tobytes(), array.shape, as_dtype(array.dtype).name) for name, array in source.arrays.items()},
        "in_place": [name for name in in_place if name in source.arrays],
        "expected": [
            np.asarray(have if want is None else want).astype(np.float64).reshape(np.shape(have))
            for want, have in zip(expected, outputs, strict=True)
        ],
        "types": [as_dtype(np.asarray(have).dtype).name for have in outputs],
        "tolerance": tolerance,
    }
    if not any(array.any() for array in record["expected"]):
        raise Skipped("its test expects zeros everywhere: they judge nothing")
    with tempfile.TemporaryDirectory(prefix="nki_hf_library_") as name:
        folder = Path(name)
        (folder / "kernel.py").write_text("\n".join(lines))
        (folder / "case.pickle").write_bytes(pickle.dumps(record))
        (folder / "task.py").write_text(
            f"import sys\nfrom pathlib import Path\n\nsys.path.insert(0, {str(_ROOT)!r})\n"
            "from tools.conformance.library_judged import recorded_task\n\n"
            'TASK = recorded_task(Path(__file__).with_name("case.pickle"))\n'
        )
        task, rtol = str(folder / "task.py"), max(tolerance[0], 1e-6)
        found = nki_hf.judge(folder / "kernel.py", task, chip=(chip,), lnc=lnc, rtol=rtol, timeout=_SECONDS, same_writes=True)
    if "cannot be replayed" in found["sentence"]:
        raise Skipped(f"the judge refuses kernels whose Python reads a value: {found['sentence']}")
    if not found["passed"]:
        raise Mismatch(found["sentence"])
    return str(found["sentence"])


def recorded_task(path: Path) -> Task:
    """The task of a launch that `judged` wrote; its inputs are those of the library's test, whatever the distribution."""
    record = pickle.loads(path.read_bytes())
    arrays = {
        name: np.frombuffer(data, as_dtype(kind).dtype).reshape(shape) for name, (data, shape, kind) in record["arrays"].items()
    }
    relative, absolute = max(record["tolerance"][0], 1e-6), record["tolerance"][1]
    expected = tuple(record["expected"])
    return Task(
        name="recorded",
        about="a launch of nki-library's tests",
        arrays=lambda size: {name: (shape, kind) for name, (_, shape, kind) in record["arrays"].items()},
        reference=lambda **_: expected,
        flops=lambda size: 0,
        check=(1, 1),
        at=(1,),
        in_place=record["in_place"],
        outputs=tuple(f"out{number}" for number in range(len(expected))),
        out_dtypes=record["types"],
        inputs=lambda size, distribution, rng: arrays,
        recorded=True,
        scale=lambda **_: tuple(_size(array, absolute / relative) for array in expected),
    )


def _size(expected: Any, absolute: float) -> float:
    """The norm of a row each of whose elements errs by as much as the library's tests allow, over the relative tolerance."""
    finite = np.abs(expected[np.isfinite(expected)])
    return (expected.shape[-1] if expected.ndim else 1) ** 0.5 * (float(finite.max(initial=0.0)) + absolute)


class _Source:
    """Values as Python source; arrays become parameters.

    Attributes:
      imports: lines that the source needs.
      arrays: parameters by name.
    """

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.arrays: dict[str, Any] = {}

    def of(self, value: Any, name: str) -> str:
        """The source of a value; `name` is that of the argument in which it is."""
        if isinstance(value, np.ndarray) and value.ndim:
            free = name if name not in self.arrays else f"{name}_{len(self.arrays)}"
            self.arrays[free] = value
            return free
        if isinstance(value, np.generic | np.ndarray):
            return self.of(value.item(), name)
        if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if np.isfinite(value) else f"float({str(value)!r})"
        if isinstance(value, DType):
            return f"nl.{value.name}"
        if isinstance(value, Enum):
            return f"{self.named(type(value))}.{value.name}"
        if isinstance(value, tuple | list) and type(value) in (tuple, list):
            items = "".join(f"{self.of(item, f'{name}_{number}')}, " for number, item in enumerate(value))
            return f"({items})" if isinstance(value, tuple) else f"[{items}]"
        if type(value) is dict:
            return "{" + ", ".join(f"{key!r}: {self.of(item, f'{name}_{key}')}" for key, item in value.items()) + "}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
            given = ", ".join(f"{key}={self.of(item, f'{name}_{key}')}" for key, item in fields.items())
            return f"{self.named(type(value))}({given})"
        if isinstance(value, nki_hf.sim.language.NKIObject) or hasattr(value, "_fields"):  # holds what it was made of
            fields = {key: getattr(value, key) for key in inspect.signature(type(value)).parameters}
            given = ", ".join(f"{key}={self.of(item, f'{name}_{key}')}" for key, item in fields.items())
            return f"{self.named(type(value))}({given})"
        try:
            return f"nl.{as_dtype(value).name}"
        except (TypeError, ValueError):
            raise Skipped(f"{name} is a {type(value).__name__}, which has no form in a kernel's file") from None

    def named(self, item: Any) -> str:
        """The name of a class or function, imported."""
        module, name = item.__module__, item.__qualname__
        if "." in name:
            raise Skipped(f"{module}.{name} cannot be imported by its name")
        if module.startswith("test."):  # a wrapper of the test around the kernel; its module needs names supplied
            self.imports.add(f"from tools.conformance.library_cases import load; {name} = load({module!r}).{name}")
            return str(name)
        self.imports.add(f"from {module} import {name}")
        return str(name)
