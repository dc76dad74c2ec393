"""How often the searches of kernels draw each name of `nki.isa` and `nki.language`, and each argument of it.

python -m tools.fuzz.coverage --count 900      exit code 1 if something is neither drawn nor named in not_drawn.py

The names are those of the simulator's own lists (nki_hf/sim/surface). Counted is what a drawn kernel itself calls and the rules
let pass; an argument counts where its value is not the default, and operators, dtypes and members of enumerations where they
are some call's argument.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

from nki_hf.sim import isa, language
from nki_hf.sim.dtypes import DType
from nki_hf.sim.isa.operators import Operator
from nki_hf.sim.surface import ISA, LANGUAGE
from nki_hf.sim.tensors.tensor import NkiTensor

__all__ = ["counting", "drawn_by", "main", "names"]

_MODULES = (("isa", isa, ISA), ("language", language, LANGUAGE))
_HERE = Path(__file__).parent
_UNTOLD = ("self", "name")
"""Arguments that no row has: names of instructions and tensors have no effect on values."""


def names() -> list[str]:
    """All rows: `isa.activation`, `isa.activation(bias)`, `language.exp`, `language.exp()` (called), and so on."""
    found = []
    for prefix, module, listed in _MODULES:
        for name in listed:
            owner, value = _value(module, name)
            full = f"{prefix}.{name}"
            if isinstance(value, type) and issubclass(value, Enum):
                found += [f"{full}.{item.name}" for item in value]
            elif isinstance(value, Operator):
                found += [full, f"{full}()"]
            elif isinstance(value, DType) or (owner is module and inspect.isfunction(value)) or _is_method(owner, value):
                found.append(full)
                if callable(value) and not isinstance(value, DType):
                    found += [f"{full}({argument})" for argument in _optional(value)]
            elif isinstance(value, property | type) or owner is not module:
                found.append(full)
    return list(dict.fromkeys(found))


def _value(module: Any, name: str) -> tuple[Any, Any]:
    owner, _, attribute = name.rpartition(".")
    where = getattr(module, owner) if owner else module
    return where, inspect.getattr_static(where, attribute, None) if owner else getattr(module, name)


def _is_method(owner: Any, value: Any) -> bool:
    return isinstance(owner, type) and inspect.isfunction(value)


def _optional(function: Any) -> list[str]:
    return [
        item.name
        for item in inspect.signature(function).parameters.values()
        if item.default is not item.empty and item.name not in _UNTOLD
    ]


@contextlib.contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count what kernels in tools/fuzz use while the block runs."""
    found: Counter[str] = Counter()
    with contextlib.ExitStack() as stack:
        for prefix, module, listed in _MODULES:
            for name in listed:
                owner, value = _value(module, name)
                full = f"{prefix}.{name}"
                attribute = name.rpartition(".")[2]
                if isinstance(owner, type):
                    owner = next((each for each in owner.__mro__ if attribute in vars(each)), owner)
                if inspect.isfunction(value):
                    stack.enter_context(mock.patch.object(owner, attribute, _counted(full, value, found)))
                elif isinstance(value, property) and isinstance(owner, type):
                    stack.enter_context(mock.patch.object(owner, attribute, property(_counted(full, value.fget, found))))
        called = Operator.__call__

        def operator_called(self: Operator, *given: Any, **more: Any) -> Any:
            result = called(self, *given, **more)
            if _drawn(sys._getframe(1)):
                found[f"language.{self.name}()"] += 1
                _note_values((*given, *more.values()), found)
            return result

        stack.enter_context(mock.patch.object(Operator, "__call__", operator_called))
        yield found


def _counted(full: str, function: Callable[..., Any], found: Counter[str]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*given: Any, **more: Any) -> Any:
        result = function(*given, **more)
        if _drawn(sys._getframe(1)):
            found[full] += 1
            bound = signature.bind(*given, **more).arguments
            for name, value in bound.items():
                default = signature.parameters[name].default
                if default is not inspect.Parameter.empty and value is not default and not _same(value, default):
                    found[f"{full}({name})"] += 1
            _note_values(bound.values(), found)
        return result

    return called


def _drawn(frame: Any) -> bool:
    return Path(frame.f_code.co_filename).parent == _HERE


def _same(value: Any, default: Any) -> bool:
    return isinstance(value, bool | int | float | str | tuple | Enum) and type(value) is type(default) and value == default


def _note_values(values: Iterable[Any], found: Counter[str]) -> None:
    for value in values:
        if isinstance(value, Operator | DType):
            found[f"language.{_public(value)}"] += 1
        elif isinstance(value, Enum):
            kind = type(value).__name__
            found[f"{'language' if kind == 'MemoryRegion' else 'isa'}.{kind}.{value.name}"] += 1
        elif isinstance(value, NkiTensor):
            found[f"language.{_public(value.dtype)}"] += 1


def _public(value: Any) -> str:
    return "bool_" if value is language.bool_ else str(value.name)


def drawn_by(kinds: Iterable[str], seeds: Iterable[int]) -> Counter[str]:
    """How often the programs of these seeds use each name, as `names` has them."""
    from tools.fuzz.search import KINDS

    with counting() as found:
        for kind in kinds:
            for seed in seeds:
                KINDS[kind].draw(seed)  # issues what it draws, to leave out what the rules refuse
    return found


def main(words: list[str] | None = None) -> int:
    """Print the table; 1 if something is neither drawn nor named in `NOT_DRAWN`."""
    from tools.fuzz.not_drawn import NOT_DRAWN

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="seeds of each kind")
    parser.add_argument("--kinds", nargs="+", default=["kernels", "wide", "rare"])
    options = parser.parse_args(words)
    found = drawn_by(options.kinds, range(options.count))
    listed, missing = names(), 0
    width = max(map(len, listed))
    for name in listed:
        reason = "" if found[name] else NOT_DRAWN.get(name, "MISSING")
        missing += reason == "MISSING"
        print(f"{name:<{width}} {found[name]:>9,}  {reason}".rstrip())
    drawn = sum(found[name] > 0 for name in listed)
    named = len(listed) - drawn - missing
    print(f"{len(listed)} names and arguments: {drawn} drawn, {named} named with a reason, {missing} missing")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main())
