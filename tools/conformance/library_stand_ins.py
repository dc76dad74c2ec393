"""What nki-library's tests import that is not here: modules that stand in for it, and files of the tree, repaired."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.sdk import typing as nki_typing
from tools.conformance.packed_arrays import is_packed, packed, unpacked

__all__ = ["install", "uninstall"]

_REPLACED = (
    "aws_embedded_metrics", "plotext", "boto3", "botocore", "paramiko", "fabric", "fabric2", "pandas", "matplotlib",
    "test.utils.test_orchestrator", "test.utils.metrics_collector", "test.utils.metrics_emitter",
    "test.utils.tensor_histogram", "test.utils.host_management", "test.utils.perf_analysis_private",
)  # fmt: skip


def install(checkout: Path) -> None:
    """Let the checkout's kernels and tests be imported; in `as_nki`."""
    sys.meta_path[:0] = [_Replacements(), _RepairedFiles()]
    sys.modules.pop("test", None)
    sys.modules["neuron_dtypes"] = _neuron_dtypes()
    for name in ("neuronxcc", "neuronxcc.nki", "neuronxcc.starfish", "neuronxcc.starfish.support"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["neuronxcc.nki.typing"] = sys.modules["neuronxcc.nki"].typing = nki_typing  # type: ignore[attr-defined]
    sys.modules["neuronxcc.starfish.support.dtype"] = sys.modules["neuron_dtypes"]
    sys.path[:0] = [str(checkout / "src"), str(checkout)]
    _repair_call()
    _repair_name()


def uninstall() -> None:
    """Take the checkout and the stand-ins for modules away from where Python looks."""
    sys.path[:2] = []
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Replacements | _RepairedFiles)]


def _repair_name() -> None:
    """test_topk_reduce.py of April 2026 imports its kernel from a package that the tree does not have: let it."""
    root = "nkilib_src.nkilib.experimental"
    package = sys.modules[f"{root}.subkernels"] = ModuleType(f"{root}.subkernels")
    package.__path__ = list(importlib.import_module(f"{root}.collectives").__path__)


def _repair_call() -> None:
    """qkv_cte.py of April 2026 imports the module stream_shuffle_broadcast and calls it as its function: let it."""
    module = importlib.import_module("nkilib_src.nkilib.core.utils.stream_shuffle_broadcast")
    function = module.stream_shuffle_broadcast
    call = {"__call__": lambda self, *args, **kwargs: function(*args, **kwargs)}
    module.__class__ = type("CallableModule", (ModuleType,), call)


class _Replacements(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives an empty, permissive module for every name in `_REPLACED` and below."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if any(name == item or name.startswith(item + ".") for item in _REPLACED):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Permissive(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


class _RepairedFiles(importlib.abc.MetaPathFinder):
    """Finds mlp.py of April 2026, which no Python compiles: the end of its docstring stands there twice."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name.endswith("nkilib.core.mlp.mlp") else None
        if spec is not None and spec.origin is not None:
            spec.loader = _OneDocstring(name, spec.origin)
        return spec


class _OneDocstring(importlib.machinery.SourceFileLoader):
    _TWICE = re.compile(rb'(?<=\n    """\n)\n        TKG mode supports:.*?\n    """\n', re.DOTALL)

    def source_to_code(self, data: Any, path: Any, **options: Any) -> Any:
        """The file without the second end, its lines numbered as before."""
        blank = self._TWICE.sub(lambda found: b"\n" * found[0].count(b"\n"), bytes(data))
        return super().source_to_code(blank, path, **options)


class _Permissive(ModuleType):
    """A module whose every attribute is a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *a, **k: None, "__getattr__": lambda self, _: lambda *a, **k: None})


def _neuron_dtypes() -> ModuleType:
    """`neuron_dtypes`, reduced to what the tests call: casts and sizes."""
    module = ModuleType("neuron_dtypes")

    def static_cast(array: Any, dtype: Any) -> Any:
        source, target = np.asarray(array), as_dtype(dtype)
        if is_packed(source):
            source = unpacked(source)
        return packed(source, target) if target.family == "packed" else source.astype(target.dtype)

    module.static_cast = static_cast  # type: ignore[attr-defined]
    module.sizeinbytes = lambda dtype: as_dtype(dtype).itemsize  # type: ignore[attr-defined]
    module.finfo = lambda dtype: SimpleNamespace(dtype=as_dtype(dtype).dtype)  # type: ignore[attr-defined]
    module.is_float_type = lambda dtype: as_dtype(dtype).is_float  # type: ignore[attr-defined]
    for name in ("bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float16", "float32"):
        setattr(module, name, as_dtype(name).dtype.type)
    for name in ("float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"):
        setattr(module, name, as_dtype(name))
    return module
