"""Loads what is verified: a kernel or a reference from a file or a module, whose own code may fail."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nki_hf.from_source import importable, spec_of
from nki_hf.sim.run.launch import Kernel
from nki_hf.sim.sdk.as_nki import as_nki
from nki_hf.tools.judging.kernel_choice import kernel_in

__all__ = ["UsageError", "check_call", "describe", "load_callable", "never_ending", "parameters", "place_of", "position"]

_MACHINERY = tuple(str(Path(__file__).resolve().parents[1] / part) for part in ("sim/", "tools/verify", "observers/"))


class UsageError(ValueError):
    """The command was used wrongly; the message says what is allowed."""


def load_callable(spec: str) -> Any:
    """The object that `PATH:NAME` or `MODULE:NAME` stands for, or the only kernel of `PATH`; files may import `nki` or
    `nki_hf.lang`.

    Raises:
      UsageError: no such file, module or name.
    """
    place, name = place_of(spec), spec[len(place_of(spec)) + 1 :]
    if not place or (not name and not place.endswith(".py")):
        raise UsageError(f"{spec!r} names no object: write PATH:NAME, e.g. my_kernel.py:attention.")
    with as_nki(), never_ending():
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    if not name:
        try:
            return kernel_in(module, place, name)[0]
        except ValueError as error:
            raise UsageError(str(error)) from error
    found = getattr(module, name, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{place} has no function {name!r}: it has {', '.join(known) or 'none'}.")
    return found


def place_of(spec: str) -> str:
    """The file or module of `PATH:NAME`, or of `PATH.py` alone."""
    return spec if spec.endswith(".py") else spec.rpartition(":")[0]


@contextlib.contextmanager
def never_ending() -> Iterator[None]:
    """A file that would end this process with `os._exit`, before there is a verdict, raises SystemExit instead."""

    def leave(status: int = 0) -> None:
        raise SystemExit(status)

    ending, os._exit = os._exit, leave  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = ending


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
    return UsageError(f"{name} cannot be imported: {describe(error).rstrip('.')}. Make the file run on its own first.")


def describe(error: BaseException) -> str:
    """`ValueError: text (file:line). Advice`, with the innermost line outside of this package's own machinery."""
    file, line = position(error)
    from nki_hf.tools.judging.explain import explained  # imports lint, which only errors need

    text, advice = explained(error)
    return f"{text}{f' ({file}:{line})' if file else ''}{f'. {advice}' if advice else ''}"


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


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"{path} is not a file: give the path of a .py file.")
    name = f"nki_hf_verified_{path.stem}_{abs(hash(path.resolve()))}"
    spec = spec_of(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be loaded as a Python module.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that inspect finds the source of the kernel's functions
    importable(path.parent)  # files beside it are importable, as if it were run
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the file's own code raises
        raise _not_imported(str(path), error) from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    return module


def parameters(kernel: Any) -> tuple[str, ...]:
    """Names of the kernel's parameters."""
    function = kernel.function if isinstance(kernel, Kernel) else kernel
    return tuple(inspect.signature(function).parameters)
