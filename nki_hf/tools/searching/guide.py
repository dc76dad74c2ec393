"""The guide: one text that tells a program what kernel to write, by which rules, and shows one that passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nki_hf.chips import Chip, get_chip
from nki_hf.sim.surface.entry import Entry
from nki_hf.sim.surface.isa import ISA
from nki_hf.sim.surface.language import LANGUAGE
from nki_hf.tasks import Task
from nki_hf.tools.searching.menu import MENU

__all__ = ["EXAMPLE", "described", "guide"]

EXAMPLE = Path(__file__).parent / "softmax_example.py"

_RULES = """\
1. The file has one function decorated with @nki.jit (helpers are plain functions). Its parameters are the arrays above, in
   that order or by these names; parameters with a default may follow.
2. Arrays are tensors in HBM. Work happens in SBUF and PSUM: allocate tiles with nl.ndarray(shape, dtype, buffer=nl.sbuf) or
   nl.psum, load with nisa.dma_copy(dst=tile, src=x[a:b, :]), store with nisa.dma_copy(dst=out[a:b, :], src=tile).
3. The first axis of a tile is the partition axis, at most 128. Instructions work along the free axes.
4. Every instruction writes into dst= and returns nothing. Tiles have no arithmetic operators that compute values.
5. Outputs are allocated with nl.ndarray(shape, dtype, buffer=nl.shared_hbm) and returned, in the order above.
6. Matmuls read SBUF and write PSUM: nisa.nc_matmul(dst, stationary, moving) is stationary.T @ moving; both have the
   contraction on partitions (at most 128 of it at a time). Writing one PSUM tile several times accumulates; its first
   write overwrites.
7. Everything is allocated before it is read, and written before it is read. Tiles are freed by themselves.
8. The kernel must hold for all sizes that are asked for: read them from x.shape. Constants of one size fail at the other.
9. The kernel's Python never sees values: it runs once, on shapes, and what it issued is judged. No NumPy on the arrays, no
   files, no printing, no network: none of it reaches the verdict.
10. The language is that of NKI 0.3 and later (import nki, nki.isa as nisa, nki.language as nl), not neuronxcc.nki."""


def guide(task: Task, sizes: Mapping[str, Any]) -> str:
    """The whole text.

    Args:
      task: what is to be computed.
      sizes: keyword arguments of the judge: `check`, `at`, `chip`, `dtype`, `layout`.
    """
    chips = [get_chip(name) for name in sizes["chip"]]
    parts = [
        f"# Write a kernel for AWS Trainium: {task.name}",
        described(task, sizes),
        "## Rules\n\n" + _RULES,
        "## Limits\n\n" + "\n".join(_limits(chip) for chip in chips),
        "## What makes kernels fast here\n\n" + "\n".join(f"* {line}" for line in MENU),
        "## Instructions: nisa\n\n" + "\n".join(_signatures("nisa", ISA)),
        "## Language: nl\n\n" + "\n".join(_signatures("nl", LANGUAGE)),
        "## An example that passes (task softmax)\n\n```python\n" + EXAMPLE.read_text(encoding="utf-8") + "```",
        "## Answer\n\nWrite the whole file in one ```python block. What stands around the block is kept as a note: say in "
        "one or two sentences what you changed and why it should be faster.",
    ]
    return "\n\n".join(parts) + "\n"


def described(task: Task, sizes: Mapping[str, Any]) -> str:
    """What is computed, the arrays at one size, which sizes and chips are judged and timed."""
    dtype = sizes.get("dtype") or task.dtype
    check, at = list(sizes.get("check") or task.check), list(sizes.get("at") or task.at)
    laid = dict(part.split("=", 1) for part in sizes.get("layout", "").split(",") if "=" in part)
    shown = [_array(name, shape, kind, task, laid) for name, (shape, kind) in task.shapes(check[0], dtype).items()]
    out = ", ".join(_output(name, number, task, dtype, laid) for number, name in enumerate(task.outputs))
    constants = task.constants(check[0])
    lines = [f"{task.about}.", "", f"Arrays at size {check[0]}, in HBM:", *shown, "", f"Outputs: {out}."]
    if constants:
        lines.append(
            "Constants, given to a kernel that has such parameters: " + ", ".join(f"{k}={v}" for k, v in constants.items())
        )
    lines += [
        "",
        f"Values are judged at sizes {', '.join(map(str, check))} against float64, on inputs of several kinds; times are "
        f"simulated at {', '.join(map(str, at))} on {', '.join(sizes['chip'])}. The score is (least possible time) / (time), 0 "
        "for a kernel that is wrong.",
    ]
    return "\n".join(lines)


def _array(name: str, shape: Sequence[int], kind: str, task: Task, laid: Mapping[str, str]) -> str:
    own, wanted = task.axes.get(name, ""), laid.get(name, "")
    if own and wanted:
        given = dict(zip(own, shape, strict=True))
        return f"* {name} {[given.get(letter, 1) for letter in wanted]} {kind} (axes {wanted})"
    return f"* {name} {list(shape)} {kind}" + (f" (axes {own})" if own else "")


def _output(name: str, number: int, task: Task, dtype: str, laid: Mapping[str, str]) -> str:
    kind = task.out_dtypes[number] if number < len(task.out_dtypes) else "float"
    axes = laid.get(name) or task.axes.get(name, "")
    return f"{name} {dtype if kind == 'float' else kind}" + (f" (axes {axes})" if axes else "")


def _limits(chip: Chip) -> str:
    return (
        f"{chip.name}: {chip.partitions} partitions; SBUF {chip.sbuf_partition_bytes - chip.sbuf_reserved_bytes:,} B per "
        f"partition; PSUM {chip.psum_banks} banks of {chip.psum_bank_bytes:,} B per partition (512 float32); stationary "
        f"operand at most [128, {chip.stationary_free_max}], moving at most [128, {chip.moving_free_max}]; Vector transposes "
        f"{chip.vector_transpose_max} x {chip.vector_transpose_max}; bn_stats at most {chip.bn_stats_free_max} elements; "
        f"float32 matmuls cost {chip.tensor_fp32_cycles} times bfloat16; {chip.dma_engines} DMA engines of "
        f"{chip.dma_engine_bytes_per_ns} B per ns at full rate."
    )


def _signatures(prefix: str, names: Mapping[str, Entry]) -> list[str]:
    """A line per name that works; values and types together at the end."""
    functions = [
        f"* {prefix}.{name}{entry.signature}" for name, entry in names.items() if entry.signature and _offered(name, entry)
    ]
    plain = [name for name, entry in names.items() if not entry.signature and _offered(name, entry)]
    return [*functions, f"* also: {', '.join(f'{prefix}.{name}' for name in plain)}"]


def _offered(name: str, entry: Entry) -> bool:
    return entry.status != "refused" and not entry.since
