"""Header of a model's bench: versions, machine, device, model and input, in words."""

from __future__ import annotations

import math
import os
import platform
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

import nki_hf
from nki_hf.tools.model_bench.model import Subject
from nki_hf.tools.model_bench.options import BenchOptions

__all__ = ["header", "interpreter"]


def header(options: BenchOptions, device: str, subject: Subject, limit_s: float) -> dict[str, str]:
    """What a record begins with, by name; `limit_s` is that of each attention's calls."""
    config, prompt = subject.text_config, subject.prompt
    batch, seqlen = prompt.input_ids.shape
    times = {
        "cpu": "wall clock of this CPU (the nki row runs the simulator: its time says nothing about Trainium)",
        "neuron": "measured on the Neuron device, inputs and outputs resident there",
        "xla": "measured on the Neuron device, copies from and to the host included",
    }[device]
    settings = nki_hf.settings.settings()
    kernels = f"simulator (CPU), standing for {settings.chip}" if device == "cpu" else "the installed nki"
    return {
        "nki_hf": f"{nki_hf.__version__}, Python {sys.version.split()[0]}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, numpy {np.__version__}",
        "machine": f"{platform.machine()}, {_cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads",
        "device": device,
        "nki kernels": kernels,
        "times": times,
        "model": f"{options.model}, {_layers(config.num_hidden_layers)}, {config.num_attention_heads}/"
        f"{config.num_key_value_heads} heads, head_dim {getattr(config, 'head_dim', None) or '?'}, {options.dtype}",
        "input": f"{batch} x {seqlen:,} tokens, {prompt.tokens:,} of them real; {prompt.source}",
        "calls": f"first call apart, {options.warmup} warm-up, {options.iters} timed"
        + ("" if math.isinf(limit_s) else f"; fewer where they take more than {limit_s:.0f} s"),
    }


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def interpreter() -> str:
    """The interpreter that runs this, as one types it: relative to the working directory where it lies below that."""
    path = Path(sys.executable)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown CPU"
