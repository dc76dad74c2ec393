"""What stands in for nki-library's own test harness, so that its test modules run here unmodified.

Its tests describe a launch (`KernelArgs`: kernel, inputs, golden output, tolerances) and hand it to an orchestrator that
compiles for hardware. Here the orchestrator simulates. Packages that the harness needs and that are not public or not
relevant (metrics, remote hosts, `neuron_dtypes`) are replaced by small modules of our own (library_stand_ins.py).
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

from nki_hf import sim
from nki_hf.chips import get_chip
from nki_hf.sim.execution.storage import INTEGER_SENTINEL
from nki_hf.sim.isa import microscaling
from nki_hf.sim.tensors.tensor import NkiTensor
from tools.conformance.case import Skipped
from tools.conformance.compare import Mismatch, compare
from tools.conformance.library_framework import ALIASED, accept_aliased_inputs, hand_over_packed_inputs
from tools.conformance.library_judged import judged
from tools.conformance.library_stand_ins import install, uninstall
from tools.conformance.packed_arrays import is_packed, unpacked

__all__ = ["SimulatingOrchestrator", "install_for_good", "library"]

MAX_ELEMENTS = 1 << 28
"""Largest number of elements of all inputs together that is simulated; larger cases are not run, and say so."""


@contextmanager
def library(checkout: Path) -> Iterator[None]:
    """Block in which the checkout's kernels (`nkilib_src.nkilib`) and tests (`test.*`) can be imported."""
    before = set(sys.modules)
    saved_test = sys.modules.get("test")
    os.environ.setdefault("NKILIB_SIMULATION_RUN_ALL", "1")
    try:
        with sim.as_nki(), _quantize_mx_of_0_3(), _own_base():
            install(checkout)
            accept_aliased_inputs()
            hand_over_packed_inputs()
            SimulatingOrchestrator.checkout = checkout
            yield
    finally:
        uninstall()
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("test", "nkilib_src", "nkilib", "neuron_dtypes", "neuronxcc"):
                del sys.modules[name]
        if saved_test is not None:
            sys.modules["test"] = saved_test


@contextmanager
def _quantize_mx_of_0_3() -> Iterator[None]:
    """The tree is of NKI 0.3: until 0.5 `quantize_mx` took OCP's scale, half of what it is now, and clamped the largest."""
    largest = {name: float(ml_dtypes.finfo(name).max) for name in ("float8_e4m3fn", "float8_e5m2")}
    cast, exponents = microscaling.cast, microscaling._MAX_EXPONENT

    def clamped(values: Any, dtype: Any) -> Any:
        limit = largest.get(dtype.name, np.inf)
        return cast(values.clip(-limit, limit), dtype)

    old = {name: value + 1 for name, value in exponents.items()}
    with mock.patch.dict(exponents, old), mock.patch.object(microscaling, "cast", clamped):
        yield


def _own_base() -> Any:
    """Kernels of MX types ask for a view's `base_tensor` where tests hand over a tensor: let it be its own."""
    return mock.patch.object(NkiTensor, "base_tensor", property(lambda tensor: tensor), create=True)


def install_for_good(checkout: Path) -> None:
    """What `library` does, without an end: for a process that runs one kernel; in `as_nki`."""
    kept = ExitStack()
    kept.enter_context(_quantize_mx_of_0_3())
    kept.enter_context(_own_base())
    kept.pop_all()
    install(checkout)


class SimulatingOrchestrator:
    """Takes the place of the library's orchestrator: `execute` simulates a launch and compares its outputs.

    Attributes:
      launched: whether there was a launch. Tests that expect a refusal may meet one while they make inputs.
      share: largest error of the last launch, as a share of its tolerance; None if the test brings its own validator.
      compared: how many outputs of the last launch were compared.
      refusal: the exception of the last launch that raised, for tests that expect one.
      replays: True also records each launch and compares a replay on other values with a fresh run, bit for bit.
      judges: True also judges each launch as a user's kernel (library_judged.py).
      checkout: the library.
      target: the chip in place of the one that a test names; None: that one.
      trace_mode: what the library's tests look at to know that they run on a simulator.
    """

    replays = False
    judges = False
    checkout = Path()
    target: str | None = None

    def __init__(self, target: str | None = None) -> None:
        self.target = target
        self.launched = False
        self.share: float | None = None
        self.compared = 0
        self.refusal: Exception | None = None
        self.trace_mode = importlib.import_module("test.utils.common_dataclasses").TraceMode.Simulator

    def execute(self, launch: Any) -> None:
        """Run the launch's kernel and check every golden output; raises on the first mismatch."""
        try:
            self._execute(launch)
        except Exception as error:  # raised again: the test around it may swallow it
            self.refusal = error
            raise

    def _execute(self, launch: Any) -> None:
        # copies: a kernel may write its inputs, from which the test makes its golden output afterwards
        if not hasattr(launch.kernel_input, "items"):
            raise Skipped("its ranks exchange data; a simulated launch has one device")
        inputs = {
            name.removesuffix(ALIASED): value.copy() if isinstance(value, np.ndarray) else value
            for name, value in launch.kernel_input.items()
        }
        total = sum(value.size for value in inputs.values() if isinstance(value, np.ndarray))
        if total > MAX_ELEMENTS:
            raise Skipped(f"inputs of {total:,} elements, more than {MAX_ELEMENTS:,}")
        known = inspect.signature(getattr(launch.kernel_func, "function", launch.kernel_func)).parameters
        for name in [name for name, value in inputs.items() if name not in known and value is False]:
            # test_qkv_cte of April 2026 gives qkv, which lacks it, what qkv_cte below has as its default
            del inputs[name], launch.kernel_input[name]
        unknown = [name for name in inputs if name not in known]
        if unknown:
            raise Skipped(f"the test passes {', '.join(unknown)}, which the kernel of the same tree does not take")
        compiler = launch.compiler_input
        chip = get_chip(self.target or compiler.platform_target.get_compile_target())
        if self.replays:
            _check_replay(launch.kernel_func, inputs, chip, compiler.logical_nc_config)
        self.launched = True
        result = sim.launch(
            launch.kernel_func,
            kwargs=inputs,
            options=sim.SimOptions(chip=chip, third_party=True, events=False),
            lnc=compiler.logical_nc_config,
        )
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
            self.checkout,
            launch.kernel_func,
            {name.removesuffix(ALIASED): value for name, value in given},
            [name.removesuffix(ALIASED) for name, _ in given if name.endswith(ALIASED) or name in written],
            wanted,
            outputs[: len(wanted)],
            (checks.relative_accuracy, checks.absolute_accuracy),
            chip,
            launch.compiler_input.logical_nc_config,
        )

    def _check(self, outputs: tuple[Any, ...], checks: Any) -> float | None:
        golden = checks.golden_output
        expected = golden if isinstance(golden, dict) else golden.golden
        if expected is None:
            return None
        named = list(getattr(golden, "output_ndarray", None) or expected)  # of which the test may check some only
        if len(named) < len(outputs) and "out" in expected:
            outputs = outputs[: len(named)]  # a kernel that also returns what it added up has no golden for that
        if len(named) != len(outputs):
            raise Mismatch(f"{len(outputs)} outputs, the reference has {len(named)}: {', '.join(named)}.")
        shares = []
        self.compared = sum(expected.get(name) is not None for name in named)
        for name, have in zip(named, outputs, strict=True):
            want = expected.get(name)
            if hasattr(want, "validator"):
                validator = want.validator if not isinstance(want.validator, type) else want.validator()
                if not validator.validate(have):
                    raise Mismatch(f"{name} fails the test's own validator {type(validator).__name__}.")
                continue
            if want is None:
                continue
            have, want = _comparable(have, np.asarray(want))
            shares.append(compare(have, want, rtol=checks.relative_accuracy, atol=checks.absolute_accuracy, name=name))
        return max(shares, default=None)


def _comparable(have: Any, want: Any) -> tuple[Any, Any]:
    """Output and reference in the reference's type; of a packed type the numbers in it, whatever the reference calls it."""
    have = np.asarray(have)
    if is_packed(have) and want.dtype.itemsize == have.dtype.itemsize:
        return unpacked(have), unpacked(np.asarray(want).view(np.ndarray).view(have.dtype.str).astype(have.dtype))
    return _never_written_as_zero(np.asarray(have, dtype=want.dtype), want), want


def _never_written_as_zero(have: Any, want: Any) -> Any:
    """The output with 0 where it holds what marks memory that was never written, and the reference 0.

    The scales of MX types fill 4 of 32 partitions; kernels leave the others as they are, and the tests take them as zeros.
    """
    never = np.isnan(have) if have.dtype.kind not in "iub" else have == INTEGER_SENTINEL
    if have.size != want.size:
        return have
    return np.where(never & (want.reshape(have.shape) == 0), np.zeros((), have.dtype), have)


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
