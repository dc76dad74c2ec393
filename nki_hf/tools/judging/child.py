"""The kernel's process: load one file, run the kernel on shapes alone, write the tapes. It sees no values and no reference."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.from_source import importable, spec_of
from nki_hf.sim import Kernel, SimOptions, as_nki, isa, language, launch
from nki_hf.sim.execution.current_machine import running_machine
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.run import instrumentation, tape
from nki_hf.tools.judging import plain
from nki_hf.tools.judging.explain import explained, place, stated
from nki_hf.tools.judging.impure import Impurity
from nki_hf.tools.judging.kernel_choice import NoKernel, kernel_in
from nki_hf.tools.judging.relaunched import changed_when_repeated
from nki_hf.tools.judging.stage_names import UNKNOWN_CONSTANT
from nki_hf.tools.numpy_layouts import NUMPY_DTYPES

__all__ = ["UnknownConstant", "answer", "bound_arguments", "check_constants", "module_of"]


_MOST_OUTPUTS = 64


class UnknownConstant(ValueError):
    """A constant was named that the kernel has not."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What happened: `stage` (`load`, `run` or empty), `error`, the kernel's `name`, a tape per trace, and `changed`: where
    a launch, done once more, gave another tape.

    Args:
      request: `file`, `name` (may be empty), `lnc`, `named` (constants that the kernel must have), `progress` (a file that says
        when the kernel itself runs), `part` (a file for the answer as it is after the first `judged` traces; the answer then
        has those after them), and `traces`: each with `chip`, `size`, `arrays` (name, shape, dtype; in order),
        `constants`, `checked` (limits are checked here too), `optional` (an error is noted as `refused`, with `crashed`) and
        `repeated` (it is launched again at the end; without any, the first one is).
    """
    instrumentation.install()
    _hide_modules()
    found: dict[str, Any] = {"stage": "load", "error": None, "name": "", "traces": [], "changed": None}
    impurity = Impurity(str(request["file"]))
    with as_nki():
        try:
            module = module_of(str(request["file"]))
            kernel, name = kernel_in(module, str(request["file"]), str(request["name"]))
        except BaseException as error:  # whatever the file raises, SystemExit among it
            return {**found, "error": _described(error)}
        impurity.loaded()
        found.update(name=name, stage="run")
        Path(request["progress"]).write_text("run")
        apart = 0
        for number, trace in enumerate(request["traces"]):
            if number and number == request["judged"]:
                apart = number
                _hand_over({**found, "stage": ""}, Path(request["part"]))
            try:
                found["traces"].append(_trace(kernel, name, trace, int(request["lnc"]), request["named"]))
            except BaseException as error:  # whatever the kernel raises
                if trace["optional"] and isinstance(error, Exception):
                    words = stated(error, Path(request["file"]))
                    found["traces"].append({"refused": words or _described(error)["message"], "crashed": not words})
                    continue
                return {**found, "error": {**_described(error), "size": trace["size"]}}
    found["changed"] = changed_when_repeated(
        request["traces"],
        found["traces"],
        lambda trace: _trace(kernel, name, {**trace, "checked": False}, int(request["lnc"]), ()),  # only its tape is of use
    )
    if found["changed"] is None and (words := impurity.words()):
        found["changed"] = {"file": "", "line": 0, "message": words}
    elif found["changed"] is not None and (words := impurity.changed()):
        found["changed"]["message"] = f"{words}, and {found['changed']['message']}"
    return {**found, "stage": "", "traces": found["traces"][apart:]}


def _hide_modules() -> None:
    """Take the simulator's own modules out of the language, for good in this process: a name that meets one does not exist."""
    for space in (isa, language):
        for name, value in list(vars(space).items()):
            if isinstance(value, ModuleType) and name not in space.__all__:
                delattr(space, name)


def _hand_over(part: Mapping[str, Any], file: Path) -> None:
    """Write a part of the answer, whole or not at all: it may be read at once."""
    beside = file.with_suffix(".new")
    beside.write_bytes(plain.dump(part))
    beside.replace(file)


def module_of(file: str) -> Any:
    """The module of a file, run, or of a dotted name; inside `as_nki`."""
    if not file.endswith(".py"):
        return importlib.import_module(file)
    path = Path(file)
    name = f"nki_hf_judged_{path.stem}" if path.stem.isidentifier() else "nki_hf_judged"
    spec = spec_of(name, path)
    if spec is None or spec.loader is None:
        raise NoKernel(f"{path} cannot be loaded as a Python module: give a .py file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    importable(path.parent)
    spec.loader.exec_module(module)
    return module


def _trace(kernel: Kernel, name: str, trace: Mapping[str, Any], lnc: int, named: Iterable[str]) -> dict[str, Any]:
    arrays = {key: np.broadcast_to(np.zeros((), NUMPY_DTYPES[dtype]), shape) for key, shape, dtype in trace["arrays"]}
    given, names = bound_arguments(kernel.function, name, arrays, ast.literal_eval(trace["constants"]))
    check_constants(kernel.function, name, names, named)
    outputs: dict[int, Any] = {}
    with tape.recording() as recorder:
        options = SimOptions(
            chip=get_chip(trace["chip"]),
            values=False,
            trip_counts=1,
            third_party=True,
            checks=trace["checked"],
            events=trace["checked"],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SimulatorWarning)
            try:
                with _threads_heard():
                    launch(_kept(kernel.function, outputs), (), given, options=options, lnc=lnc)
            except KernelFault:
                if len(outputs) < lnc:
                    raise
                # the kernel has returned: memory and outputs are judged from its tape
        for value in outputs.values():
            if isinstance(value, tuple | list) and len(value) > _MOST_OUTPUTS:
                raise NoKernel(f"{name} returns {len(value):,} outputs: at most {_MOST_OUTPUTS} are judged.")
            if any(isinstance(item, np.ndarray) for item in (value if isinstance(value, tuple | list) else (value,))):
                raise NoKernel(
                    f"{name} returns a NumPy array that its Python made, which no chip has computed: outputs are tensors in "
                    "nl.shared_hbm that instructions write."
                )
        order = [key for key in inspect.signature(kernel.function).parameters if key in names]
        return {"tape": recorder.tape(outputs), "parameters": [(key, names[key]) for key in order], "refused": ""}


@contextlib.contextmanager
def _threads_heard() -> Iterator[None]:
    """What a thread of the kernel's own raises is raised here: instructions belong to the thread in which the kernel runs."""
    heard: list[BaseException] = []

    def hear(args: Any) -> None:
        heard.append(args.exc_value)

    before, threading.excepthook = threading.excepthook, hear
    try:
        yield
    finally:
        threading.excepthook = before
    if heard:
        error = NoKernel(f"a thread that the kernel started failed ({heard[0]}): a kernel issues its instructions itself.")
        raise error.with_traceback(heard[0].__traceback__)


def _kept(function: Callable[..., Any], outputs: dict[int, Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        machine = running_machine()
        outputs[machine.core if machine is not None else 0] = value
        return value

    kernel.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    kernel.__name__ = getattr(function, "__name__", "kernel")
    return kernel


def bound_arguments(
    function: Callable[..., Any], name: str, arrays: Mapping[str, Any], constants: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The kernel's arguments, and of each array the task's name: by name where they all fit, else by position."""
    parameters = inspect.signature(function).parameters
    known = {key: value for key, value in constants.items() if key in parameters}
    if set(arrays) <= set(parameters):
        names = {key: key for key in arrays}
    else:
        rest = [f"{item}" for item in parameters.values() if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
        free = [key for key, item in parameters.items() if key not in known and f"{item}" not in rest]
        if len(free) < len(arrays):
            more = f": name each array as a parameter, not by {' and '.join(rest)}" if rest else ""
            raise NoKernel(f"{name} takes {', '.join(free) or 'no arrays'}, and the task gives {', '.join(arrays)}{more}.")
        names = dict(zip(free, arrays, strict=False))
    given = {key: arrays[own] for key, own in names.items()}
    missing = [
        key
        for key, item in parameters.items()
        if item.default is item.empty
        and key not in given
        and key not in known
        and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    if missing:
        raise NoKernel(f"{name} also needs {', '.join(missing)}, and the task gives {', '.join(arrays)}: give it with --const.")
    return {**given, **known}, names


def check_constants(function: Callable[..., Any], name: str, arrays: Mapping[str, str], named: Iterable[str]) -> None:
    """Compare the constants that were named with the kernel's parameters; `arrays` has those that take arrays.

    Raises:
      UnknownConstant: the kernel has no such parameter, or the task's array is its value.
    """
    parameters = [
        key
        for key, item in inspect.signature(function).parameters.items()
        if key not in arrays and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    unknown = sorted(set(named) - set(parameters))
    if unknown:
        taken = [key for key in unknown if key in arrays]
        why = f"{', '.join(taken)} takes an array of the task" if taken else f"{name} has no parameter {', '.join(unknown)}"
        raise UnknownConstant(f"const: {why}: its constants are {', '.join(parameters) or 'none'}.")


def _described(error: BaseException) -> dict[str, Any]:
    """Plain data about an error: kind, message, file, line, and the fault's record if it is one."""
    if isinstance(error, KernelFault):
        record = error.record
        return {
            "kind": record.kind,
            "message": f"{record.instruction}: {record.message}",
            "limit": record.limit,
            "advice": record.advice,
            "file": record.file,
            "line": record.line,
            "fault": True,
        }
    file, line = place(error)
    kind = type(error).__name__
    message, advice = explained(error)
    if isinstance(error, NoKernel):
        kind = "NoKernel"
    if isinstance(error, UnknownConstant):
        kind = UNKNOWN_CONSTANT
    return {"kind": kind, "message": message, "limit": "", "advice": advice, "file": file, "line": line, "fault": False}
