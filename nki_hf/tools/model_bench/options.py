"""BenchOptions: everything that a benchmark run may be told. Knows neither torch nor transformers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

__all__ = [
    "ATTENTIONS",
    "DEVICES",
    "DEVICE_WARMUP",
    "DTYPES",
    "OFFLINE_LAYERS",
    "OFFLINE_MODEL",
    "PRESETS",
    "BenchOptions",
    "WrongUse",
]

OFFLINE_MODEL = "qwen3-0.6b-random"
"""The default model: Qwen3-0.6B's dimensions with fixed random weights; needs no download."""

OFFLINE_LAYERS = 28
"""Decoder layers that it has in full, as Qwen3-0.6B does."""

ATTENTIONS = ("eager", "sdpa", "nki")
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
DEVICES = ("auto", "cpu", "neuron", "xla")
DEVICE_WARMUP = 3
"""Warm-up calls on a device, if none are asked for: the first ones there still load programs and grow buffers."""

PRESETS: dict[str, dict[str, Any]] = {"aim414": {"layers": 4, "seqlen": 16384, "batch_size": 1}}
"""Sizes by name. aim414: those of the re:Invent 2025 session of that number."""

_LARGEST = 2**31 - 1
"""What a size may be: tensors are indexed with 32 bits."""
_MOST_CALLS = 1_000_000


class WrongUse(ValueError):
    """The run was asked for something that means nothing here; the message says what, what is allowed, what to do."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of one run.

    Attributes:
      model: hub id, local folder, or `OFFLINE_MODEL`. Default: `OFFLINE_MODEL`.
      layers: decoder layers kept of the model. Default: 4.
      seqlen: tokens per prompt, padding included. Default: 2,048.
      batch_size: prompts per forward pass. Default: 1.
      attn: attention implementations to compare, in this order. Default: eager, sdpa, nki.
      dtype: `bf16`, `fp16` or `fp32`, of weights and activations. Default: bf16.
      device: `cpu`, `neuron` (native TorchNeuron), `xla` (torch-neuronx), or `auto` (a Neuron device if there is one).
      warmup: untimed calls after the first one, which is always timed apart. Default: 1.
      iters: timed calls. Default: 5.
      padded: True left-pads the prompts, each by another length. Default: False.
      decode_steps: number of last tokens that are also decoded one by one with a cache, timed apart. Default: 0.
      cache_dir: folder of the CPU reference outputs. Default: the user's cache folder.
      window: sliding window of every layer, in keys; None = the model's own. Default: None.
      profile: True also writes what the device (or the simulator) executed. Default: False.
      json: the result file. Default: out/qwen3_bench.json.
      seed: seed of the random weights and token ids. Default: 0.
      trust_remote_code: True lets code that comes with the model run. Default: False.
      no_page: True leaves neither page nor picture beside the result file. Default: False.

    Raises:
      WrongUse: a value that means nothing; the message names it.
    """

    model: str = OFFLINE_MODEL
    layers: int = 4
    seqlen: int = 2048
    batch_size: int = 1
    attn: tuple[str, ...] = ATTENTIONS
    dtype: str = "bf16"
    device: str = "auto"
    warmup: int = 1
    iters: int = 5
    padded: bool = False
    decode_steps: int = 0
    cache_dir: Path | None = None
    window: int | None = None
    profile: bool = False
    json: Path = Path("out/qwen3_bench.json")
    seed: int = 0
    trust_remote_code: bool = False
    no_page: bool = False

    def __post_init__(self) -> None:
        for name, least in (("layers", 1), ("seqlen", 2), ("batch_size", 1), ("warmup", 0), ("iters", 1), ("decode_steps", 0)):
            if getattr(self, name) < least:
                raise WrongUse(f"{name}={getattr(self, name)} cannot be run: {name} must be {least} or more.")
        for name, most in (("seqlen", _LARGEST), ("batch_size", _LARGEST), ("warmup", _MOST_CALLS), ("iters", _MOST_CALLS)):
            if getattr(self, name) > most:
                raise WrongUse(f"{name}={getattr(self, name)} cannot be run: {name} must be at most {most:,}.")
        if not -(2**63) <= self.seed < 2**64:
            raise WrongUse(f"seed={self.seed} is no seed of torch: it must lie between -2**63 and 2**64 - 1.")
        if self.window is not None and self.window > _LARGEST:
            raise WrongUse(f"window={self.window} is no window: it must be at most {_LARGEST:,}.")
        if self.window is not None and self.window < 1:
            raise WrongUse(f"window={self.window} is no window: it counts the query itself, so it must be 1 or more.")
        if self.model == OFFLINE_MODEL and self.layers > OFFLINE_LAYERS:
            raise WrongUse(f"layers={self.layers} is more than {self.model} has: it has {OFFLINE_LAYERS}; lower --layers.")
        if self.decode_steps >= self.seqlen:
            raise WrongUse(
                f"decode_steps={self.decode_steps} leaves no prompt of seqlen={self.seqlen}: decode_steps must be below seqlen."
            )
        if not self.attn or len(set(self.attn)) != len(self.attn):
            raise WrongUse(f"attn={','.join(self.attn)!r} is not a choice: name each attention once, at least one.")
        if self.dtype not in DTYPES:
            raise WrongUse(f"dtype={self.dtype!r} is not known: dtype is one of {', '.join(DTYPES)}.")
        if self.device not in DEVICES:
            raise WrongUse(f"device={self.device!r} is not known: device is one of {', '.join(DEVICES)}.")

    @property
    def torch_dtype(self) -> str:
        """The dtype's name in torch, e.g. `bfloat16`."""
        return DTYPES[self.dtype]

    @property
    def reference_dtype(self) -> str:
        """The dtype of the reference: float32, and float64 where the run itself is float32."""
        return "float64" if self.dtype == "fp32" else "float32"

    @property
    def reference_dir(self) -> Path:
        """The folder of the CPU reference outputs."""
        return self.cache_dir or user_cache_path("nki_hf") / "reference_outputs"

    @property
    def traced_dir(self) -> Path:
        """The folder of traced models (xla world)."""
        return self.cache_dir / "traced" if self.cache_dir else user_cache_path("nki_hf") / "traced"

    @property
    def neff_dir(self) -> Path:
        """The folder of compiled graphs (native world)."""
        return self.cache_dir / "neff" if self.cache_dir else user_cache_path("nki_hf") / "neff"

    @property
    def profile_path(self) -> Path:
        """Where `profile` writes, beside the result file."""
        return self.json.with_name(self.json.stem + ".events.jsonl")

    def arguments(self) -> list[str]:
        """The command-line flags that repeat this run; defaults are left out."""
        words: list[str] = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value == item.default and not (item.name == "warmup" and self.device in ("neuron", "xla")):
                continue  # a device has another default for --warmup
            flag = "--" + item.name.replace("_", "-")
            if value is True:
                words.append(flag)
            else:
                words += [flag, ",".join(value) if isinstance(value, tuple) else str(value)]
        return words

    def command(self, python: str = "python") -> str:
        """The shell command that repeats this run with the interpreter `python`."""
        return shlex.join([python, "examples/qwen3_bench.py", *self.arguments()])
