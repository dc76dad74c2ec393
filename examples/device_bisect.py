"""Where a run on Trainium fails: each step in a process of its own, from one torch op to the whole model.

    python examples/device_bisect.py --device neuron --seqlen 2048 --layers 4

A kernel may fail inside a graph although it passes alone, and a failed compilation can surface at the next op; so the
first step that fails is the answer. On `--device cpu` the same steps run on the simulator.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from nki_hf.errors import BackendUnavailable
from nki_hf.tools.model_bench.worlds import choose_device

STEPS = ("torch", "kernel", "kernel-padded", "layer", "layer-compiled", "model", "model-compiled")
"""In order: one torch op; the kernel alone; with run-time bounds; one layer; in a compiled graph; all layers; the same."""


def main(
    device: Annotated[str, typer.Option(help="neuron or cpu.")] = "neuron",
    seqlen: Annotated[int, typer.Option(help="Tokens.")] = 512,
    layers: Annotated[int, typer.Option(help="Layers of the whole model.")] = 4,
    step: Annotated[str, typer.Option(help="Run this step alone, in this process.")] = "",
) -> None:
    """Run every step and name the first that fails. Exit code 0: all passed, 1: one failed, 2: wrong use."""
    if (step and step not in STEPS) or device not in ("neuron", "cpu"):
        typer.echo(f"step={step!r}, device={device!r}: step is one of {', '.join(STEPS)}; device is neuron or cpu.", err=True)
        raise typer.Exit(2)
    if step:
        run_step(step, device, seqlen, layers)
        return
    try:
        choose_device(device)
    except BackendUnavailable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    for name in STEPS:
        command = [sys.executable, __file__, "--device", device, "--seqlen", str(seqlen), "--layers", str(layers)]
        done = subprocess.run([*command, "--step", name], capture_output=True, text=True)
        if done.returncode:
            typer.echo(f"{name}: FAILED\n{done.stderr.strip()}")
            typer.echo(f"The first step that fails is {name!r}; repeat it alone: {' '.join(command)} --step {name}")
            raise typer.Exit(1)
        typer.echo(f"{name}: ok, {done.stdout.strip()}")


def run_step(step: str, device: str, seqlen: int, layers: int) -> None:
    """One step; prints the largest difference from torch on the CPU, raises if it is too large."""
    import torch

    import nki_hf

    torch.manual_seed(0)
    nki_hf.configure(strict=True)
    if step == "torch":
        x = torch.randn(128, 128)
        compare(x.to(device) @ x.to(device), x @ x)
    elif step.startswith("kernel"):
        q, k, v = (torch.randn(1, heads, seqlen, 128, dtype=torch.bfloat16) for heads in (16, 8, 8))
        hidden = seqlen // 3 if step == "kernel-padded" else 0
        mask = torch.ones(seqlen, seqlen, dtype=torch.bool).tril()
        mask[:, :hidden] = False
        bounds = {}
        if hidden:
            rows = torch.arange(1, seqlen + 1, dtype=torch.int32)[None]
            bounds = {"lo": torch.full_like(rows, hidden).to(device), "hi": rows.to(device)}
        found = nki_hf.attention(q.to(device), k.to(device), v.to(device), causal=not hidden, **bounds)
        keys, values = (x.float().repeat_interleave(2, dim=1) for x in (k, v))
        expected = torch.nn.functional.scaled_dot_product_attention(q.float(), keys, values, attn_mask=mask)
        compare(found[:, :, hidden:], expected[:, :, hidden:])
    else:
        compare_model(device, seqlen, 1 if step.startswith("layer") else layers, compiled=step.endswith("compiled"))


def compare_model(device: str, seqlen: int, layers: int, *, compiled: bool) -> None:
    """A random Qwen3 of Qwen3-0.6B's head sizes: nki on the device against eager on the CPU."""
    import torch
    from transformers import Qwen3Config, Qwen3Model

    config = Qwen3Config(
        vocab_size=512, hidden_size=256, intermediate_size=256, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=max(seqlen, 512), attn_implementation="eager",
    )  # fmt: skip
    model = Qwen3Model(config).eval().to(torch.bfloat16)
    ids = torch.randint(0, 512, (1, seqlen), dtype=torch.int32)
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).last_hidden_state
        model.set_attn_implementation("nki")
        model.to(device)

        def call(ids: torch.Tensor) -> torch.Tensor:
            return model(input_ids=ids, use_cache=False).last_hidden_state

        if compiled:
            backend = "neuron" if device == "neuron" else "eager"
            call = torch.compile(call, backend=backend, fullgraph=True, dynamic=False)
        compare(call(ids.to(device)), expected)


def compare(found: object, expected: object) -> None:
    """Print how far apart two tensors are, relative to the second's RMS; at most 5 % passes."""
    found, expected = found.cpu().float(), expected.float()
    error = float((found - expected).square().mean().sqrt() / expected.square().mean().sqrt())
    print(f"RMS error {error:.2%} of the reference")
    if not error <= 0.05:  # NaN fails too
        raise SystemExit(f"RMS error {error:.2%} is above 5 %")


if __name__ == "__main__":
    typer.run(main)
