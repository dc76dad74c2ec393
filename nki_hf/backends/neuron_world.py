"""Which PyTorch world for Trainium this process has: native TorchNeuron, torch-xla, or none, and what is wrong with it.

Both worlds ship under the import name `torch_neuronx`, so they are told apart by what the imported package offers. All
questions to the machine go through a `Host`, so that each answer can be tested anywhere.
"""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

__all__ = [
    "DEVICE_WORLDS",
    "Host",
    "Package",
    "World",
    "detect_nki",
    "detect_world",
    "device_world",
    "imported",
    "simulator_problem",
]

DEVICE_WORLDS = {"neuron": "native", "xla": "xla"}
"""Device type of a tensor -> the world that launches kernels on it. Routing asks the tensor, never the installation."""

_AWS_INDEX = "Install it from AWS's own package index, by the instructions of the Neuron documentation."
_NO_DEVICE = "Failed to get Neuron instance information"


@dataclass(frozen=True, kw_only=True)
class Host:
    """The questions that detection may ask; the defaults ask this machine.

    Attributes:
      import_module: imports a module by name; may raise anything an import may raise.
      version: version of a distribution, or None.
      environ: environment variables.
      glob: paths that match a pattern.
      run: standard output of a command, or None if it is missing or fails.
    """

    import_module: Callable[[str], ModuleType] = importlib.import_module
    version: Callable[[str], str | None] = field(default=lambda name: _version(name))
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    glob: Callable[[str], list[str]] = glob.glob
    run: Callable[[Sequence[str]], str | None] = field(default=lambda command: _run(command))


@dataclass(frozen=True, kw_only=True)
class Package:
    """One imported package: `module` if it is usable, else `problem`, one sentence that says why not and what to do."""

    name: str
    version: str | None = None
    module: Any = field(default=None, repr=False)
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class World:
    """What `detect_world` found.

    Attributes:
      name: `native`, `xla`, or `none`.
      device: device type of that world's tensors, or None.
      torch_neuronx: the package, or what is wrong with it.
    """

    name: str
    torch_neuronx: Package

    @property
    def device(self) -> str | None:
        """`neuron`, `xla`, or None."""
        return {world: device for device, world in DEVICE_WORLDS.items()}.get(self.name)

    @property
    def problem(self) -> str | None:
        """Why no kernel can be launched from here, or None."""
        return self.torch_neuronx.problem


def device_world(device_type: str) -> str | None:
    """The world that serves tensors of `device_type`; None for devices that are not Neuron's (cpu, cuda, meta, ...)."""
    return DEVICE_WORLDS.get(device_type)


def detect_world(host: Host | None = None) -> World:
    """The world of this process. Never raises: what is wrong is in `World.problem`.

    Known traps that it names: an import that raises RuntimeError where the container has no Neuron device, the empty
    placeholder of the public index, an xla build without torch_xla.
    """
    host = host or Host()
    version = host.version("torch-neuronx")
    module, error = imported("torch_neuronx", host)
    if isinstance(error, ImportError):
        return _no_world(version, f"torch_neuronx cannot be imported ({error}). {_AWS_INDEX}")
    if error is not None and _NO_DEVICE in str(error):
        why = (
            f"torch_neuronx is installed but sees no Neuron device ({_first_line(error)}): "
            "start the container with --device /dev/neuron0 (or --privileged), or use a Trn2 or Trn3 instance."
        )
        return _no_world(version, why)
    if isinstance(error, FileNotFoundError) and _is_program(error.filename):
        why = (
            f"importing torch_neuronx failed: {_first_line(error)}. It starts a program of the venv that is not on PATH: "
            "activate the venv, or put its bin folder first, and start again."
        )
        return _no_world(version, why)
    if error is not None:
        why = f"importing torch_neuronx failed: {_named(error)}. Run `nki_hf env` and check the versions."
        return _no_world(version, why)
    native = hasattr(module, "nki_op") or _has_torch_neuron(host)
    if hasattr(module, "trace") and not native:
        return _xla_world(host, module, version)
    if native:
        return World(name="native", torch_neuronx=Package(name="torch_neuronx", version=version, module=module))
    why = (
        f"torch_neuronx{_spelled(version)} has neither trace (xla) nor nki_op (native): it is the placeholder of the public "
        f"index. {_AWS_INDEX}"
    )
    return _no_world(version, why)


def detect_nki(host: Host | None = None) -> Package:
    """The `nki` package, usable only if it has `nki.jit` and `nki.isa`. Never raises."""
    host = host or Host()
    version = host.version("nki")
    module, error = imported("nki", host)
    if error is not None:
        return Package(name="nki", version=version, problem=f"nki cannot be imported ({_named(error)}). {_AWS_INDEX}")
    version = version or getattr(module, "__version__", None)
    isa = imported("nki.isa", host)[1] is None
    if not hasattr(module, "jit") or not isa:
        missing = "nki.jit" if not hasattr(module, "jit") else "nki.isa"
        return Package(
            name="nki",
            version=version,
            problem=f"nki{_spelled(version)} has no {missing}: it is the placeholder of the public index. {_AWS_INDEX}",
        )
    return Package(name="nki", version=version, module=module)


def imported(name: str, host: Host) -> tuple[Any, BaseException | None]:
    """The module and None, or None and what its import raised."""
    try:
        return host.import_module(name), None
    # A native package may raise anything here: OSError for libnrt, AttributeError, its own types; or it ends the process.
    except (Exception, SystemExit) as error:
        return None, error


def simulator_problem(host: Host) -> str | None:
    """What is wrong with a run on a device while NKI_SIMULATOR=1 sends every kernel to nki's CPU simulator; else None."""
    if host.environ.get("NKI_SIMULATOR") != "1":
        return None
    return (
        "NKI_SIMULATOR=1: every kernel would run in nki's CPU simulator and not on the chip. "
        "Unset it for Neuron tensors; tensors on cpu use nki_hf's own simulator without it."
    )


def _xla_world(host: Host, module: ModuleType, version: str | None) -> World:
    error = imported("torch_xla", host)[1]
    if error is not None:
        why = (
            f"torch_neuronx{_spelled(version)} is the xla build but torch_xla cannot be imported ({_named(error)}): "
            "install the torch-xla that belongs to it (both 2.9), in a venv without the native build."
        )
        return _no_world(version, why)
    return World(name="xla", torch_neuronx=Package(name="torch_neuronx", version=version, module=module))


def _has_torch_neuron(host: Host) -> bool:
    return hasattr(imported("torch", host)[0], "neuron")


def _no_world(version: str | None, problem: str) -> World:
    return World(name="none", torch_neuronx=Package(name="torch_neuronx", version=version, problem=problem))


def _is_program(filename: object) -> bool:
    """True if what was not found is a program to start: its name has no folder."""
    return isinstance(filename, str) and os.path.basename(filename) == filename


def _named(error: BaseException) -> str:
    """The first line of an error; with its type where that says more than "it is not installed" or is all there is."""
    plain = isinstance(error, ImportError | RuntimeError) or not str(error).strip()
    return _first_line(error) if plain else f"{type(error).__name__}: {_first_line(error)}"


def _spelled(version: str | None) -> str:
    return f" {version}" if version else ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except Exception:  # not installed, or its metadata has no version, or is no text
        return None


def _run(command: Sequence[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
