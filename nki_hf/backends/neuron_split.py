"""Several launches for one call whose kernel would unroll too far: over the axes that its binding names, and at last rows.

NKI unrolls every loop, so the compiler's work grows with batch x heads x tiles. Launches of one call that differ in batch or
heads have equal shapes and are one compiled kernel. Query rows are only divided where one head alone is too long; those
launches are one compiled kernel if they visit keys alike, and a few kernels else (a causal mask).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nki_hf.backends.base import KernelCall
from nki_hf.kernels.binding import Binding, Output
from nki_hf.kernels.division import Part, launch_counts, launch_parts, launch_rows, rows_of, shared_axes
from nki_hf.kernels.registry import find

__all__ = ["MAX_INSTRUCTIONS", "join", "split"]

MAX_INSTRUCTIONS = 1 << 17
"""Instructions per launch, by a kernel's own estimate: 8,192 score blocks of flash_prefill. Assumed: that a limit exists is
documented (errors EVRF007, EBVF030 and EXTP004), its size is not; public kernels of 12,000 to 41,000 DMAs compile, one of 6.9
million instructions was refused. Lower it if compilation takes too long (`NeuronBackend(max_instructions=...)`)."""


def split(call: KernelCall, max_instructions: int = MAX_INSTRUCTIONS) -> list[KernelCall]:
    """The calls to launch one after the other; the call itself if it is small enough.

    The smallest launch is what the binding cannot divide: of flash_prefill, a single query tile of one head.
    """
    binding = find(call.kernel)
    if binding is None or call.instructions <= max_instructions:
        return [call]
    counts, runs = _counts(binding, call, max_instructions)
    returned = binding.returned(call.passed)
    return [
        _rows(binding, _part(call, part), run) for part in launch_parts(binding, call.shapes, returned, counts) for run in runs
    ]


def join(call: KernelCall, results: Sequence[tuple[Any, ...]], max_instructions: int = MAX_INSTRUCTIONS) -> tuple[Any, ...]:
    """The outputs of `call` from those of its parts, in `split`'s order."""
    binding = find(call.kernel)
    if binding is None or len(results) == 1:
        return results[0]
    counts, runs = _counts(binding, call, max_instructions)
    returned = binding.returned(call.passed)
    for axis, count in reversed([*counts.items(), ("seqlen_q", len(runs))]):
        results = [_merged(axis, returned, call, results[start : start + count]) for start in range(0, len(results), count)]
    return results[0]


def _counts(binding: Binding, call: KernelCall, limit: int) -> tuple[Mapping[str, int], Sequence[tuple[int, int] | None]]:
    """Into how many pieces each axis is cut, outermost first, and the query rows of each launch (None = all)."""
    counts = launch_counts(binding, call.shapes, call.instructions, limit)
    return counts, launch_rows(binding, call.shapes, call.constants, call.instructions, limit, counts) or [None]


def _part(call: KernelCall, part: Part) -> KernelCall:
    tensors = {name: tensor if tensor is None else tensor[part.inputs[name]] for name, tensor in call.tensors.items()}
    return replace(call, tensors=tensors, instructions=0)


def _rows(binding: Binding, call: KernelCall, run: tuple[int, int] | None) -> KernelCall:
    """The query rows `[begin, end)` of a call."""
    if run is None or binding.division.rows is None:
        return call
    tensors = {
        name: tensor if tensor is None else tensor[rows_of(binding, name, tuple(tensor.shape), *run)]
        for name, tensor in call.tensors.items()
    }
    return replace(call, tensors=tensors, constants=binding.division.rows.constants(call.constants, *run, call.lnc))


def _merged(axis: str, returned: Sequence[Output], call: KernelCall, results: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The outputs of parts that follow each other along an axis."""
    import torch

    if len(results) == 1:
        return results[0]
    merged = []
    for output, pieces in zip(returned, zip(*results, strict=True), strict=True):
        own = "num_heads_q" if axis == "num_heads_kv" and axis not in output.axes else axis
        # The query heads of one kv head are parts, too, of outputs that have an entry per query head.
        apart = own in output.axes and not {own, axis} & shared_axes(output, call.shapes)
        merged.append(torch.cat(pieces, dim=output.axes.index(own)) if apart else sum(pieces))
    return tuple(merged)
