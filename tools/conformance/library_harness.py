"""What stands in for nki-library's own test harness, so that its test modules run here unmodified.

Its tests describe a launch (`KernelArgs`: kernel, inputs, golden output, tolerances) and hand it to an orchestrator that
compiles for hardware. Here the orchestrator simulates. Packages that the harness needs and that are not public or not
relevant (metrics, remote hosts, `neuron_dtypes`) are replaced by small modules of our own.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from nki_hf import sim
from nki_hf.chips import get_chip
from nki_hf.sim.dtypes import as_dtype
from nki_hf.sim.sdk import typing as nki_typing
from tools.conformance.case import Skipped
from tools.conformance.compare import Mismatch, compare
from tools.conformance.library_judged import judged
from tools.conformance.packed_arrays import is_packed, packed, unpacked

__all__ = ["SimulatingOrchestrator", "install", "library"]

_REPLACED = (
    "aws_embedded_metrics", "plotext", "boto3", "botocore", "paramiko", "fabric", "fabric2", "pandas", "matplotlib",
    "test.utils.test_orchestrator", "test.utils.metrics_collector", "test.utils.metrics_emitter",
    "test.utils.tensor_histogram", "test.utils.host_management", "test.utils.perf_analysis_private",
)  # fmt: skip
_ALIASED = ".must_alias_input"
"""Ends the name of an input that a kernel writes in place."""
MAX_ELEMENTS = 1 << 25
"""Largest number of elements of all inputs together that is simulated; larger cases are not run, and say so."""


@contextmanager
def library(checkout: Path) -> Iterator[None]:
    """Block in which the checkout's kernels (`nkilib_src.nkilib`) and tests (`test.*`) can be imported."""
    before = set(sys.modules)
    saved_test = sys.modules.get("test")
    os.environ.setdefault("NKILIB_SIMULATION_RUN_ALL", "1")
    try:
        with sim.as_nki():
            install(checkout)
            _accept_aliased_inputs()
            SimulatingOrchestrator.checkout = checkout
            yield
    finally:
        sys.path[:2] = []
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Replacements)]
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("test", "nkilib_src", "nkilib", "neuron_dtypes", "neuronxcc"):
                del sys.modules[name]
        if saved_test is not None:
            sys.modules["test"] = saved_test


def install(checkout: Path) -> None:
    """Let the checkout's kernels and tests be imported, for good; in `as_nki`."""
    sys.meta_path.insert(0, _Replacements())
    sys.modules.pop("test", None)
    sys.modules["neuron_dtypes"] = _neuron_dtypes()
    for name in ("neuronxcc", "neuronxcc.nki", "neuronxcc.starfish", "neuronxcc.starfish.support"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = []
    sys.modules["neuronxcc.nki.typing"] = sys.modules["neuronxcc.nki"].typing = nki_typing  # type: ignore[attr-defined]
    sys.modules["neuronxcc.starfish.support.dtype"] = sys.modules["neuron_dtypes"]
    sys.path[:0] = [str(checkout / "src"), str(checkout)]
    _repair_import()


class SimulatingOrchestrator:
    """Takes the place of the library's orchestrator: `execute` simulates a launch and compares its outputs.

    Attributes:
      share: largest error of the last launch, as a share of its tolerance; None if the test brings its own validator.
      refusal: the exception of the last launch that raised, for tests that expect one.
      replays: True also records each launch and compares a replay on other values with a fresh run, bit for bit.
      judges: True also judges each launch as a user's kernel (library_judged.py).
      checkout: the library.
      trace_mode: what the library's tests look at to know that they run on a simulator.
    """

    replays = False
    judges = False
    checkout = Path()

    def __init__(self) -> None:
        self.share: float | None = None
        self.refusal: Exception | None = None
        self.trace_mode = importlib.import_module("test.utils.common_dataclasses").TraceMode.Simulator

    def execute(self, launch: Any) -> None:
        """Run the launch's kernel and check every golden output; raises on the first mismatch."""
        try:
            self._execute(launch)
        except Exception as error:
            self.refusal = error
            raise

    def _execute(self, launch: Any) -> None:
        # copies: a kernel may write its inputs, from which the test makes its golden output afterwards
        inputs = {
            name.removesuffix(_ALIASED): value.copy() if isinstance(value, np.ndarray) else value
            for name, value in launch.kernel_input.items()
        }
        total = sum(value.size for value in inputs.values() if isinstance(value, np.ndarray))
        if total > MAX_ELEMENTS:
            raise Skipped(f"inputs of {total:,} elements, more than {MAX_ELEMENTS:,}")
        known = inspect.signature(getattr(launch.kernel_func, "function", launch.kernel_func)).parameters
        unknown = [name for name in inputs if name not in known]
        if unknown:
            raise Skipped(f"the test passes {', '.join(unknown)}, which the kernel of the same tree does not take")
        compiler = launch.compiler_input
        chip = get_chip(compiler.platform_target.get_compile_target())
        if self.replays:
            _check_replay(launch.kernel_func, inputs, chip, compiler.logical_nc_config)
        result = sim.launch(
            launch.kernel_func, kwargs=inputs, options=sim.SimOptions(chip=chip, third_party=True, events=False),
            lnc=compiler.logical_nc_config,
        )  # fmt: skip
        checks = launch.validation_args
        if checks is None:
            return
        self.share = self._check(result.outputs, checks)
        if self.judges:
            written = [result.run.buffers[number].name for number in result.run.modified]
            self._judge(launch, result.outputs, chip.name, written)

    def _judge(self, launch: Any, outputs: tuple[Any, ...], chip: str, written: list[str]) -> None:
        """Judge the launch as a user's kernel; what its test compares by a validator of its own is compared with `outputs`.
        Inputs that are `written` are those that the kernel works on in place.
        """
        given = launch.kernel_input.items()
        checks, golden = launch.validation_args, launch.validation_args.golden_output
        wanted = list((golden if isinstance(golden, dict) else golden.golden or {}).values())
        wanted = [None if hasattr(want, "validator") else want for want in wanted] or [None] * len(outputs)
        judged(
            self.checkout, launch.kernel_func, {name.removesuffix(_ALIASED): value for name, value in given},
            [name.removesuffix(_ALIASED) for name, _ in given if name.endswith(_ALIASED) or name in written], wanted,
            outputs[: len(wanted)],
            (checks.relative_accuracy, checks.absolute_accuracy), chip, launch.compiler_input.logical_nc_config,
        )  # fmt: skip

    def _check(self, outputs: tuple[Any, ...], checks: Any) -> float | None:
        golden = checks.golden_output
        expected = golden if isinstance(golden, dict) else golden.golden
        if expected is None:
            return None
        if len(expected) < len(outputs) and "out" in expected:
            outputs = outputs[: len(expected)]  # a kernel that also returns what it added up has no golden for that
        if len(expected) != len(outputs):
            raise Mismatch(f"{len(outputs)} outputs, the reference has {len(expected)}: {', '.join(expected)}.")
        shares = []
        for (name, want), have in zip(expected.items(), outputs, strict=True):
            if hasattr(want, "validator"):
                validator = want.validator if not isinstance(want.validator, type) else want.validator()
                if not validator.validate(have):
                    raise Mismatch(f"{name} fails the test's own validator {type(validator).__name__}.")
                continue
            if want is None:
                continue
            have = np.asarray(have, dtype=want.dtype)
            shares.append(
                compare(have, want, rtol=checks.relative_accuracy, atol=checks.absolute_accuracy, name=name)
            )  # fmt: skip
        return max(shares, default=None)


def _check_replay(kernel: Any, inputs: dict[str, Any], chip: Any, lnc: int) -> None:
    """Record a launch, replay it on halved floats, and compare with a fresh launch on those."""

    def copied(factor: float) -> dict[str, Any]:
        return {name: _scaled(value, factor) for name, value in inputs.items()}

    options = sim.SimOptions(chip=chip, third_party=True, events=False, record=True)
    program = sim.launch(kernel, kwargs=copied(1.0), options=options, lnc=lnc).program
    if program is None:
        return
    other = copied(0.5)
    have = program({name: value for name, value in copied(0.5).items() if isinstance(value, np.ndarray)})
    fresh = sim.launch(kernel, kwargs=other, options=sim.SimOptions(chip=chip, third_party=True, events=False), lnc=lnc)
    for number, (replayed, wanted) in enumerate(zip(have, fresh.outputs, strict=True)):
        if not np.array_equal(replayed.view(np.uint8), wanted.view(np.uint8)):
            raise Mismatch(f"output {number} of the replay differs from that of a fresh run.")


def _scaled(value: Any, factor: float) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if factor == 1.0 or value.dtype.kind in "iub":
        return value.copy()
    return (value.astype(np.float32) * np.float32(factor)).astype(value.dtype)


def _accept_aliased_inputs() -> None:
    """Let a test's output descriptor find an input that is written in place under its plain name too."""
    framework = importlib.import_module("test.utils.unit_test_framework").UnitTestFramework
    original = framework.__init__

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        describe = self.output_tensor_descriptor
        self.output_tensor_descriptor = lambda given: describe(
            {**{name.removesuffix(_ALIASED): value for name, value in given.items()}, **given}
        )

    framework.__init__ = initialize


def _repair_import() -> None:
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
    module.is_float_type = lambda dtype: as_dtype(dtype).is_float  # type: ignore[attr-defined]
    for name in ("bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float16", "float32"):
        setattr(module, name, as_dtype(name).dtype.type)
    for name in ("float8_e4m3fn_x4", "float8_e5m2_x4", "float4_e2m1fn_x4"):
        setattr(module, name, as_dtype(name))
    return module
