"""Instrumentation: the simulator's functions of a process are replaced by such as write each of their calls on a tape."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from nki_hf.sim import isa, language
from nki_hf.sim.dtypes import DType
from nki_hf.sim.execution.machine import Machine
from nki_hf.sim.faults import kernel_position
from nki_hf.sim.isa.instruction import NkiInstruction
from nki_hf.sim.run.tape import active
from nki_hf.sim.tensors import scalars

__all__ = ["install"]


def install() -> None:
    """Let this process write tapes, for good: call it in a process of its own, before a kernel is loaded."""
    for name in isa.__all__:
        function = getattr(isa, name)
        if inspect.isfunction(function) and name not in ("get_nc_version", "get_nc_sub_version"):
            setattr(isa, name, _written("isa", name, function))
    scalars.combine = _written("combine", "combine", scalars.combine)
    NkiInstruction.depends_on = _written("depends_on", "depends_on", NkiInstruction.depends_on)  # type: ignore[method-assign]
    Machine.allocate = _written_allocation(Machine.allocate)  # type: ignore[method-assign]
    language.fori_loop = _fori_loop(language.fori_loop)
    language.while_loop = _while_loop(language.while_loop)
    language.dynamic_range = _dynamic_range(language.dynamic_range)


def _written(kind: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def written(*args: Any, **kwargs: Any) -> Any:
        found = active()
        if found is None:
            return function(*args, **kwargs)
        recorder, machine = found
        return recorder.call(machine, kind, name, args, kwargs, function)

    return written


def _written_allocation(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def allocate(
        self: Machine,
        shape: Any,
        dtype: DType,
        space: str,
        *,
        name: str = "",
        role: str = "scratch",
        address: Any = None,
        data: Any = None,
    ) -> Any:
        found = active()
        if found is None or role == "input":
            return function(self, shape, dtype, space, name=name, role=role, address=address, data=data)
        recorder, machine = found
        args, position = (tuple([int(size) for size in shape]), dtype, space), kernel_position(2)
        if data is None:
            recorder.allocated(machine, position, (*args, name, role, address))
            return function(self, shape, dtype, space, name=name, role=role, address=address, position=position)
        given = {"name": name, "role": role, "address": address, "data": data.tobytes()}

        def made(*_: Any, **__: Any) -> Any:
            return function(self, shape, dtype, space, name=name, role=role, address=address, data=data, position=position)

        return recorder.call(machine, "allocate", "", args, given, made)

    return allocate


def _fori_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any], Any], step: int = 1) -> None:
        found = active()
        if found is None:
            return function(lower, upper, body_fun, step)
        recorder, machine = found
        with recorder.body(machine, "fori_loop", ((lower, upper), {"step": step}), kernel_position()) as entry:
            entry[8] = getattr(body_fun, "__name__", "")

            @functools.wraps(body_fun)
            def body(index: Any) -> Any:
                entry[5] = recorder.operands.number(index)
                return body_fun(index)

            function(lower, upper, body, step)

    return fori_loop


def _while_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def while_loop(init: Any, body_fun: Callable[[Any], Any]) -> None:
        found = active()
        if found is None:
            return function(init, body_fun)
        recorder, machine = found
        with recorder.body(machine, "while_loop", ((init,), {}), kernel_position()) as entry:
            entry[8] = getattr(body_fun, "__name__", "")

            @functools.wraps(body_fun)
            def body(given: Any) -> Any:
                entry[5] = recorder.operands.number(given)
                returned = body_fun(given)
                entry[7] = recorder.operands.write(returned)
                return returned

            function(init, body)

    return while_loop


def _dynamic_range(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def dynamic_range(start: Any, stop: Any = None, step: int = 1) -> Iterator[Any]:
        found = active()
        if found is None:
            yield from function(start, stop, step)
            return
        recorder, machine = found
        with recorder.body(machine, "dynamic_range", ((start, stop), {"step": step}), kernel_position()) as entry:
            for index in function(start, stop, step):
                entry[5] = recorder.operands.number(index)
                yield index

    return dynamic_range
