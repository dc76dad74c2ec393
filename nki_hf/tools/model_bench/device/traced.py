"""The xla world: a model traced ahead of time, kept on disk under a key that names everything it depends on."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

import nki_hf
from nki_hf.tools.model_bench.device.plan import COMPILER_FOLDER
from nki_hf.tools.output_files import whole_file

__all__ = ["Traced", "package_sources", "traced_key", "traced_model"]

PACKAGES = ("torch", "torch-neuronx", "torch-xla", "libneuronxla", "neuronx-cc", "nki", "nki-library", "transformers")
VARIABLES = ("NEURON_CC_FLAGS", "NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_COMPILER_FRONTEND")
"""Variables that change what the compilers make of the same call."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """What `traced_model` gave.

    Attributes:
      module: the traced module: CPU tensors in and out.
      folder: where it is kept; `work/graph.neff` is the compiled graph.
      hit: True if it was loaded and not compiled.
    """

    module: Any
    folder: Path
    hit: bool


def traced_model(
    model: Any,
    inputs: Sequence[torch.Tensor],
    key: Mapping[str, Any],
    *,
    folder: Path,
    compiler_arguments: Sequence[str],
    say: Callable[[str], None],
) -> Traced:
    """`model` traced for `inputs`: loaded if the same key was traced before, else compiled and kept.

    One process compiles while the others wait. The folder of a key is complete once its `model.pt` is there; a key file
    that says something else, or a model that cannot be loaded, is one line through `say`, and the model is traced again.

    Args:
      model: a module of tensors that returns a tensor.
      inputs: example inputs on CPU.
      key: what `traced_key` gave.
      folder: of all traced models.
      compiler_arguments: of the compiler.
      say: takes one line of text for the user.
    """
    import torch_neuronx

    text = json.dumps(key, sort_keys=True, indent=1)
    home = folder / hashlib.sha256(text.encode()).hexdigest()[:32]
    home.mkdir(parents=True, exist_ok=True)
    kept = home / "model.pt"
    with FileLock(f"{home}.lock"):
        if kept.exists():
            try:
                return Traced(module=_load(home, kept, text), folder=home, hit=True)
            except (OSError, ValueError, RuntimeError) as error:
                say(f"the traced model {kept} cannot be used ({error}); tracing it again.")
        shutil.rmtree(home / COMPILER_FOLDER, ignore_errors=True)
        for leftover in home.glob("model.*.pt"):  # of a process that was killed while it saved
            leftover.unlink()
        module = torch_neuronx.trace(
            model,
            tuple(inputs),
            compiler_workdir=str(home / COMPILER_FOLDER),
            compiler_args=list(compiler_arguments),
            inline_weights_to_neff=True,
        )
        with whole_file(home / "key.json") as file:
            file.write(text.encode())
        aside = home / f"model.{os.getpid()}.pt"
        torch.jit.save(module, str(aside))
        os.replace(aside, kept)
    return Traced(module=module, folder=home, hit=False)


def traced_key(
    fingerprint: Mapping[str, Any],
    *,
    attn: str,
    dtype: str,
    inputs: Sequence[torch.Tensor],
    arguments: Sequence[str],
    lnc: int,
    chip: str | None,
) -> dict[str, Any]:
    """Everything a traced model depends on, as plain JSON values.

    Args:
      fingerprint: the model's configuration and the hash of its weights (see `Subject.fingerprint`).
      attn: attention implementation.
      dtype: of weights and activations.
      inputs: example inputs; shapes and dtypes count, values do not.
      arguments: of the compiler.
      lnc: logical-core degree.
      chip: the chip that kernels are planned and compiled for, or None if nothing names it.
    """
    return {
        **{name: fingerprint[name] for name in ("model", "config", "weights_sha256")},
        "attn": attn,
        "dtype": dtype,
        "inputs": [[list(tensor.shape), str(tensor.dtype)] for tensor in inputs],
        "compiler_arguments": list(arguments),
        "variables": {name: os.environ.get(name) for name in VARIABLES},
        "lnc": lnc,
        "chip": chip,
        "nki_hf": nki_hf.__version__,
        "nki_hf_sha256": package_sources(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def package_sources(folder: Path = Path(nki_hf.__file__).parent) -> str:
    """Hash of every module of the package: dispatch, plans, layouts, chips and kernels all decide what a call compiles."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _load(home: Path, kept: Path, key: str) -> Any:
    if (home / "key.json").read_text() != key:
        raise ValueError("it belongs to another run")
    return torch.jit.load(str(kept))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
