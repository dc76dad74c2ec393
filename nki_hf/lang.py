"""`nki`, `nl` and `nisa` for kernels: the real packages or the simulator, per loading back end.

A kernel module says `from nki_hf.lang import nisa, nki, nl`. A back end loads that module once per language with
`load`; each load is a module object of its own, so one process can hold both and nothing is patched. Imported in the
ordinary way, a kernel module gets the simulator.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import os
import sys
import threading
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from nki_hf.errors import BackendUnavailable

__all__ = ["LANGUAGES", "features", "load", "traces"]

LANGUAGES = ("simulator", "neuron")
_MODULES = {
    "simulator": {"nki": "nki_hf.sim", "nl": "nki_hf.sim.language", "nisa": "nki_hf.sim.isa"},
    "neuron": {"nki": "nki", "nl": "nki.language", "nisa": "nki.isa"},
}
_language: ContextVar[str] = ContextVar("nki_hf_language", default="simulator")
_loaded: dict[tuple[str, str], ModuleType] = {}
_lock = threading.RLock()


def load(module: str, language: str) -> ModuleType:
    """The kernel module `module` (dotted name) bound to `language`; loaded once per language and process.

    Raises:
      BackendUnavailable: the language's packages are missing (or are the empty placeholders of a package index).
    """
    if language not in LANGUAGES:
        raise ValueError(f"language={language!r} is not known: it is one of {', '.join(LANGUAGES)}.")
    with _lock:
        key = (module, language)
        if key not in _loaded:
            _loaded[key] = _execute(module, language)
        return _loaded[key]


@functools.cache
def features(backend: str) -> frozenset[str]:
    """What the front end that a back end launches through has beyond straight-line code: `loops` = loops at run time.

    NKI 0.6 has them in its language under both of its front ends, but its parser does not take the functions that are their
    bodies. A process has one front end, so the answer does not change; a front end that is missing has nothing.
    """
    names = _MODULES["neuron" if backend == "neuron" else "simulator"]
    try:
        language, nki = importlib.import_module(names["nl"]), importlib.import_module(names["nki"])
    except Exception:  # a native package may raise anything here; the launch will say what is wrong
        return frozenset()
    if backend == "neuron" and not traces(getattr(nki, "__version__", None), os.environ.get("NKI_COMPILER_FRONTEND")):
        return frozenset()
    return frozenset({"loops"}) if hasattr(language, "fori_loop") else frozenset()


def traces(version: str | None, chosen: str | None) -> bool:
    """True if that nki runs a kernel as Python; False if it parses its source, or if the version is not known.

    `chosen` is NKI_COMPILER_FRONTEND: `tracer` is an option in 0.6 and the default from 0.7 on, `custom` is the parser.
    Source: release notes of NKI 0.6.0 and 0.7.0.
    """
    words = (version or "").split(".")
    if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()):
        return False
    number = int(words[0]), int(words[1])
    return chosen != "custom" if number >= (0, 7) else number == (0, 6) and chosen == "tracer"


def _execute(module: str, language: str) -> ModuleType:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"kernel module {module!r} does not exist.")
    name = f"{module}__{language}"  # an identifier: the parser of NKI 0.3 to 0.6 makes names of it
    spec = importlib.util.spec_from_file_location(name, found.origin)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"kernel module {module!r} has no source file.")
    loaded = importlib.util.module_from_spec(spec)
    loaded.__dict__["__builtins__"] = {**vars(builtins), "__import__": functools.partial(_import, language)}
    token = _language.set(language)
    sys.modules[name] = loaded  # so that inspect finds the source of the kernel's functions
    try:
        spec.loader.exec_module(loaded)
    except BaseException:  # an interrupt too: a module that is half executed is taken out again
        del sys.modules[name]
        raise
    finally:
        _language.reset(token)
    return loaded


def _import(language: str, name: str, *args: Any) -> Any:
    """What `import` does inside a kernel module: modules that speak the language are loaded in it, too."""
    fromlist = args[2] if len(args) > 2 else ()
    return load(name, language) if fromlist and _speaks(name) else builtins.__import__(name, *args)


@functools.cache
def _speaks(name: str) -> bool:
    found = importlib.util.find_spec(name) if name and name != __name__ else None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return False
    with open(found.origin, encoding="utf-8") as source:
        return "from nki_hf.lang import" in source.read()


def __getattr__(name: str) -> Any:
    language = _language.get()
    if name not in _MODULES[language]:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has nki, nl and nisa.")
    target = _MODULES[language][name]
    try:
        module = importlib.import_module(target)
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            f"{target} cannot be imported ({error}): kernels for Trainium need AWS's nki package, from AWS's own package index."
        ) from error
    if language == "neuron" and name == "nki" and not hasattr(module, "jit"):
        raise BackendUnavailable(
            "the installed nki has no nki.jit: it is the placeholder of the public index. Install nki from AWS's package index."
        )
    return module
