"""Where a run on Trainium fails: each step in a process of its own, from one torch op to the whole model.

    python examples/device_bisect.py                                  # native world (device neuron)
    python examples/device_bisect.py --device xla --seqlen 2048       # xla world: each step is traced by itself
    python examples/device_bisect.py --batch 2 --heads 32 --kv-heads 8 --seqlen 4096 --head-dim 64 --dtype fp16

A kernel may fail inside a graph although it passes alone, and a failed compilation can surface at the next op; so the
first step that fails is the answer. A launch that fails prints the flags of its own shape. On `--device cpu` the same
steps run on the simulator. Exit code 0: all passed, 1: one failed, 2: wrong use.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, fields
from typing import Annotated, Any

try:
    import typer

    from nki_hf.settings import settings
    from nki_hf.tools.model_bench.device.plan import compiler_arguments, environment, path_with_own_programs
    from nki_hf.tools.model_bench.options import DTYPES, BenchOptions
    from nki_hf.tools.program import ProgramCommand, finished
except ModuleNotFoundError as missing:
    # The words of a clone that was never installed, or of another Python than the one it was installed in.
    print(
        f'{missing.name} is missing in {sys.executable}: pip install -e ".[hf]" in the folder of this clone.', file=sys.stderr
    )
    sys.exit(2)

STEPS = {
    "neuron": ("torch", "kernel", "kernel-padded", "layer", "layer-compiled", "model", "model-compiled"),
    "xla": ("torch", "kernel", "kernel-padded", "layer", "model"),
}
"""In order: one torch op; the kernel alone; with run-time bounds; one layer; in a compiled graph; all layers; the same. The
xla world has no eager mode here, so nothing is compiled twice."""
STEPS["cpu"] = STEPS["neuron"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of the attention, as flags of the same names."""

    batch: int = 1
    heads: int = 16
    kv_heads: int = 8
    seqlen: int = 512
    seqlen_kv: int = 0
    head_dim: int = 128
    head_dim_v: int = 0
    dtype: str = "bf16"
    layers: int = 4

    @property
    def keys(self) -> int:
        """Number of keys."""
        return self.seqlen_kv or self.seqlen

    def flags(self) -> list[str]:
        """The flags that say the same."""
        return [word for item in fields(self) for word in (f"--{item.name.replace('_', '-')}", str(getattr(self, item.name)))]

    def problem(self) -> str:
        """What is wrong with it, or an empty text."""
        for item in fields(self):
            value, least = getattr(self, item.name), 0 if item.default == 0 else 1
            most = 1000 if item.name == "layers" else 2**31 - 1
            if item.name != "dtype" and not least <= value <= most:
                return f"{item.name}={value} cannot be run: {item.name} must be {least} or more, and at most {most:,}."
        if self.heads % self.kv_heads:
            return f"heads={self.heads} is no multiple of kv_heads={self.kv_heads}: each kv head serves equally many."
        if self.keys < self.seqlen:
            return f"seqlen_kv={self.seqlen_kv} is less than seqlen={self.seqlen}: the last query stands at the last key."
        if self.dtype not in DTYPES:
            return f"dtype={self.dtype!r} is not known: dtype is one of {', '.join(DTYPES)}."
        return ""


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=ProgramCommand)
def main(
    device: Annotated[str, typer.Option(help=f"One of {', '.join(STEPS)}.")] = "neuron",
    batch: Annotated[int, typer.Option(help="Sequences.")] = Shape.batch,
    heads: Annotated[int, typer.Option(help="Query heads.")] = Shape.heads,
    kv_heads: Annotated[int, typer.Option(help="Key and value heads.")] = Shape.kv_heads,
    seqlen: Annotated[int, typer.Option(help="Queries.")] = Shape.seqlen,
    seqlen_kv: Annotated[int, typer.Option(help="Keys, and tokens of the models; 0 = seqlen.")] = Shape.seqlen_kv,
    head_dim: Annotated[int, typer.Option(help="Of queries and keys.")] = Shape.head_dim,
    head_dim_v: Annotated[int, typer.Option(help="Of values; 0 = the same. Kernel steps only.")] = Shape.head_dim_v,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = Shape.dtype,
    layers: Annotated[int, typer.Option(help="Layers of the whole model.")] = Shape.layers,
    step: Annotated[str, typer.Option(help="Run this step alone, in this process.")] = "",
) -> None:
    """Run every step and name the first that fails. Exit code 0: all passed, 1: one failed, 2: wrong use."""
    shape = Shape(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seqlen=seqlen,
        seqlen_kv=seqlen_kv,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        layers=layers,
    )
    problem = shape.problem() or _unknown(device, step)
    if problem:
        raise ValueError(problem)
    settings()  # a variable that cannot be read is no failed step
    for name, text in environment(BenchOptions(), device).items():
        os.environ.setdefault(name, text)
    os.environ["PATH"] = path_with_own_programs(os.environ.get("PATH", ""))
    from nki_hf.tools.model_bench.worlds import choose_device  # imports torch, after the variables

    choose_device(device)
    if step:
        raise typer.Exit(min(1, finished(lambda: run_step(step, device, shape))))
    for name in STEPS[device]:
        command = [sys.executable, __file__, "--device", device, *shape.flags(), "--step", name]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NKI_HF_TRACEBACK": "1"})
        if done.returncode:
            print(f"{name}: FAILED\n{done.stderr.strip()}", flush=True)
            print(f"The first step that fails is {name!r}; repeat it alone: {shlex.join(command)}", flush=True)
            raise typer.Exit(1)
        print(f"{name}: ok, {done.stdout.strip()}", flush=True)  # a later step may take the process, or the machine, with it


def _unknown(device: str, step: str) -> str:
    if device not in STEPS:
        return f"device={device!r} is not known: device is one of {', '.join(STEPS)}."
    if step and step not in STEPS[device]:
        return f"step={step!r} is no step on {device}: step is one of {', '.join(STEPS[device])}."
    return ""


def run_step(step: str, device: str, shape: Shape) -> None:
    """One step; prints the difference from torch on the CPU, raises if it is too large."""
    import torch

    import nki_hf

    torch.manual_seed(0)
    nki_hf.configure(strict=True)
    if step == "torch":
        x = torch.randn(128, 128)
        compare(on_device(device, torch.matmul, x, x), x @ x)
    elif step.startswith("kernel"):
        compare_kernel(device, shape, padded=step == "kernel-padded")
    else:
        compare_model(device, shape, 1 if step.startswith("layer") else shape.layers, compiled=step.endswith("compiled"))


def on_device(device: str, function: Any, *inputs: Any, compiled: bool = False) -> Any:
    """The result of a function or module of tensors, computed on the device, on the CPU."""
    import torch

    if device == "xla":
        import torch_neuronx

        from nki_hf.backends.neuron import neuron_backend

        arguments = compiler_arguments("xla", neuron_backend().lnc.value)
        return torch_neuronx.trace(function, inputs, compiler_args=list(arguments))(*inputs)
    if isinstance(function, torch.nn.Module):
        function = function.to(device)
    if compiled:
        backend = "neuron" if device == "neuron" else "eager"
        function = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        return function(*(x.to(device) for x in inputs)).cpu()


def compare_kernel(device: str, shape: Shape, *, padded: bool) -> None:
    """The kernel alone, causal; `padded` hides the first keys of each sequence by run-time bounds, as left padding does."""
    import torch

    import nki_hf

    batch, queries, keys = shape.batch, shape.seqlen, shape.keys
    dtype = getattr(torch, DTYPES[shape.dtype])
    q = torch.randn(batch, shape.heads, queries, shape.head_dim, dtype=dtype)
    k = torch.randn(batch, shape.kv_heads, keys, shape.head_dim, dtype=dtype)
    v = torch.randn(batch, shape.kv_heads, keys, shape.head_dim_v or shape.head_dim, dtype=dtype)
    hidden = torch.arange(1, batch + 1)[:, None] * keys // (3 * batch) if padded else torch.zeros(batch, 1)
    lo = hidden.to(torch.int32).expand(batch, queries).contiguous()
    hi = (torch.arange(queries, dtype=torch.int32) + keys - queries + 1).expand(batch, queries).contiguous()

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nki_hf.attention(q, k, v, causal=True)

    def bounded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lo: torch.Tensor, hi: torch.Tensor) -> torch.Tensor:
        return nki_hf.attention(q, k, v, lo=lo, hi=hi)

    found = on_device(device, bounded, q, k, v, lo, hi) if padded else on_device(device, kernel, q, k, v)
    key = torch.arange(keys)
    mask = ((key >= lo[..., None]) & (key < hi[..., None]))[:, None]
    empty = ~mask.any(-1, keepdim=True)
    wide = [x.float().repeat_interleave(shape.heads // shape.kv_heads, dim=1) for x in (k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), *wide, attn_mask=mask)
    compare(found.masked_fill(empty, 0), expected.masked_fill(empty, 0))


def compare_model(device: str, shape: Shape, layers: int, *, compiled: bool) -> None:
    """A random Qwen3 of these head sizes: nki on the device against eager on the CPU."""
    import torch
    from transformers import Qwen3Config, Qwen3Model

    from nki_hf.tools.model_bench.model import LastHidden

    config = Qwen3Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=max(shape.keys, 512),
        attn_implementation="eager",
    )
    model = Qwen3Model(config).eval().to(getattr(torch, DTYPES[shape.dtype]))
    module = LastHidden(model)
    ids = torch.randint(0, 512, (shape.batch, shape.keys), dtype=torch.int32)
    with torch.no_grad():
        expected = module(ids)
    model.set_attn_implementation("nki")
    compare(on_device(device, module, ids, compiled=compiled), expected)


def compare(found: Any, expected: Any) -> None:
    """Print how far apart two tensors are, relative to the second's RMS; at most 5 % passes, and 25 % of any row's own RMS.

    A few wrong rows do not show in the error of all.
    """
    found, expected = found.float(), expected.float()
    difference = (found - expected).square()
    error = float(difference.mean().sqrt() / expected.square().mean().sqrt())
    sizes = expected.square().mean(-1).sqrt().clamp_min(1e-20)  # rows that see no key are zeros on both sides
    worst = float((difference.mean(-1).sqrt() / sizes).max())
    print(f"RMS error {error:.2%} of the reference, of the worst row {worst:.2%}")
    for what, value, limit in (("RMS error", error, 0.05), ("the worst row's RMS error", worst, 0.25)):
        if not value <= limit:  # NaN fails too
            raise ValueError(f"{what} {value:.2%} is above {limit:.0%}")


if __name__ == "__main__":
    app()
