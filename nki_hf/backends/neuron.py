"""The Trainium back end: the same kernel source, launched through the real `nki` on the device that holds the tensors."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from nki_hf import lang
from nki_hf.backends.base import KernelCall, RunResult
from nki_hf.backends.neuron_launch import launch, signature_key
from nki_hf.backends.neuron_lnc import Lnc, Platform, find_platform, resolve_lnc
from nki_hf.backends.neuron_sources import PARAMETER, digest
from nki_hf.backends.neuron_split import MAX_INSTRUCTIONS, join, split
from nki_hf.backends.neuron_world import DEVICE_WORLDS, Host, World, detect_nki, detect_world, simulator_problem
from nki_hf.errors import BackendUnavailable
from nki_hf.kernels.registry import binding

__all__ = ["NeuronBackend", "neuron_backend"]


class NeuronBackend:
    """Launches kernels on Neuron devices.

    World, chip and LNC are read once, when first asked for; a process cannot change them.

    Attributes:
      compiled: how often each distinct kernel signature (see `signature_key`) was launched; its length is the number of
        kernels that this process made the compiler build.
    """

    name = "neuron"

    def __init__(
        self, host: Host | None = None, kernels: str | None = None, *, max_instructions: int = MAX_INSTRUCTIONS
    ) -> None:
        """A back end of its own (see `neuron_backend` for that of the process).

        Args:
          host: the machine.
          kernels: package of kernel modules without bindings; None = those of `kernels.registry`.
          max_instructions: see `neuron_split.MAX_INSTRUCTIONS`.
        """
        self._host = host or Host()
        self._max_instructions = max_instructions
        self._kernels = kernels
        self.compiled: Counter[Hashable] = Counter()

    @functools.cached_property
    def world(self) -> World:
        """The PyTorch world of this process."""
        return detect_world(self._host)

    @functools.cached_property
    def lnc(self) -> Lnc:
        """The logical-core degree of every launch; BackendUnavailable if its sources disagree."""
        return resolve_lnc(self.world, self._host)

    @functools.cached_property
    def platform(self) -> Platform:
        """The chip that kernels are compiled for."""
        return find_platform(self.world, self._host)

    @functools.cached_property
    def _unavailable(self) -> str | None:
        problem = self.world.problem or detect_nki(self._host).problem or simulator_problem(self._host)
        if problem is None:
            try:
                self.lnc  # noqa: B018  (reading it is the check)
            except BackendUnavailable as error:
                problem = str(error)
        if problem is None and self.platform.chip is None:
            problem = "no Trainium chip is recognised: set NEURON_PLATFORM_TARGET_OVERRIDE to trn1, trn2 or trn3."
        return problem

    def unavailable(self) -> str | None:
        """None if kernels can be launched here, else one sentence that says why not and what to do."""
        return self._unavailable

    def run(self, call: KernelCall) -> RunResult:
        """Launch one kernel on the device of its tensors, in several launches if it would unroll too far.

        Raises:
          BackendUnavailable: no usable toolchain, or the tensors belong to the other world.
          UnsupportedProblem: arguments that nki refuses or misreads.
          LaunchFailed: the toolchain or the device failed.
        """
        if self._unavailable is not None:
            raise BackendUnavailable(self._unavailable)
        device = next((str(tensor.device) for tensor in call.tensors.values() if tensor is not None), "no device")
        wanted = DEVICE_WORLDS.get(device.split(":")[0])
        if wanted is not None and wanted != self.world.name:
            raise BackendUnavailable(
                f"the tensors are on {device} but this process has the {self.world.name} world: the two worlds cannot share a "
                f"process. Move the model to {self.world.device}."
            )
        kernel, parameters = self._kernel(call.kernel, call.entry), self._parameters(call)
        filled = call.filled()
        if PARAMETER in parameters and PARAMETER not in call.constants:
            filled = replace(filled, constants={**call.constants, PARAMETER: digest(self._module(call.kernel))})
        results = []
        for part in split(filled, self._max_instructions):
            results.append(launch(kernel, part, parameters, self.lnc.value))
            self.compiled[signature_key(part)] += 1
        return RunResult(outputs=join(filled, results, self._max_instructions))

    def _kernel(self, name: str, entry: str = "") -> Any:
        return getattr(lang.load(self._module(name), "neuron"), entry or name)

    def _parameters(self, call: KernelCall) -> tuple[str, ...]:
        # nki's kernel objects do not promise a signature; the simulator's copy of the same source has one.
        kernel = getattr(lang.load(self._module(call.kernel), "simulator"), call.entry or call.kernel)
        return tuple(inspect.signature(kernel.function).parameters)

    def _module(self, kernel: str) -> str:
        return binding(kernel).module if self._kernels is None else f"{self._kernels}.{kernel}"


@functools.cache
def neuron_backend() -> NeuronBackend:
    """The back end of this process."""
    return NeuronBackend()
