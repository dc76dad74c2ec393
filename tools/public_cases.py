"""Published cases of kernels that nobody here wrote, read from a checkout: shapes, published latencies and event streams."""

from __future__ import annotations

import ast
import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from nki_hf import sim
from nki_hf.chips import CHIPS, Chip, get_chip
from nki_hf.chips.measurements import MEASUREMENTS, Measurement
from nki_hf.problem import Mask
from nki_hf.sim.stream.events import Event
from nki_hf.tools.subjects import attention_events, causal

_NO_FIGURE = float("nan")
_SAMPLES_US = {
    "v3": (57, 175, 652, 3130),
    "v4": (25, 67, 229, 873),
    "v5": (23, 53, 171, 631),
    "v6": (23, 53, 163, 609),
    "v7": (19, 39, 112, 400),
    "v8": (20, 40, 116, 421),
    "v9": (23, 43, 118, 429),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel at one shape.

    Attributes:
      kernel: its name, with the shape if it has only one here.
      size: keys, where there are several; else 0.
      chip: trn1, trn2 or trn3.
      measured_us: published; nan if there is none.
      events: makes its event stream.
      scale: the published case is that many times the simulated one (heads or tiles that are alike).
      row: the measurement that it stands for; None if it is not among them.
      open_copies: the source leaves the engine of its PSUM copies to the compiler.
    """

    kernel: str
    size: int = 0
    chip: str
    measured_us: float
    events: Callable[[], Sequence[Event]]
    scale: int = 1
    row: Measurement | None = None
    open_copies: bool = True


def _shape(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.zeros((), dtype), shape)


def _events(kernel: Any, args: Sequence[Any], kwargs: dict[str, Any], chip: Chip, lnc: int = 1) -> Sequence[Event]:
    options = sim.SimOptions(chip=chip, values=False, third_party=True, checks=False)
    return sim.launch(kernel, args, kwargs, options=options, lnc=lnc).events


def samples(folder: Path) -> Iterator[Case]:
    """attn_fwd_v1 to v10 on trn1, q, k, v [128, seqlen] bfloat16."""
    sys.path.insert(0, str(folder))
    module = importlib.import_module("attention_kernels")
    chip = get_chip("trn1")
    for version in range(1, 12):
        kernel = getattr(module, f"attn_fwd_v{version}", None)
        if kernel is None:
            continue
        sizes = (128,) if version < 3 else (512, 1024, 2048, 4096)
        for place, size in enumerate(sizes):
            measured = _SAMPLES_US.get(f"v{version}", (_NO_FIGURE,) * 4)[place] if version > 2 else _NO_FIGURE
            tensors = (_shape((128, size), ml_dtypes.bfloat16),) * 3
            yield Case(
                kernel=f"attn_fwd_v{version}",
                size=size,
                chip="trn1",
                measured_us=measured,
                events=lambda kernel=kernel, tensors=tensors: _events(kernel, tensors, {}, chip),
            )


def library(checkout: Path) -> Iterator[Case]:
    """attention_cte (causal: 4 of the 80 published heads), attention_tkg (one of 8 kv heads) and rmsnorm_quant, on trn2."""
    sys.path.insert(0, str(checkout / "src"))
    core = "nkilib_src.nkilib.core"
    cte = importlib.import_module(f"{core}.attention.attention_cte").attention_cte
    norm = importlib.import_module(f"{core}.rmsnorm.rmsnorm_quant")
    chip = get_chip("trn2")
    for row in (m for m in MEASUREMENTS if m.public):
        if row.subject == "attention_cte" and "80 heads" in row.shape:
            lnc = 1 if row.shape.endswith("1 core") else 2
            yield _measured(row, lambda lnc=lnc: _events(cte, (), _cte(4, 1, 4096), chip, lnc), 20)
        elif row.subject == "attention_cte":
            yield _measured(row, lambda row=row: _events(cte, (), {**_cte(6, 6, row.size), "causal_mask": False}, chip, 2))
        elif row.subject == "attention_tkg":
            yield _measured(row, lambda row=row: _tkg(checkout, 16, 10, row.size, 128), 8)
        elif row.subject == "rmsnorm_quant":
            hidden, rows = int(row.shape.split(" ")[1].replace(",", "")), min(row.size, 4096)
            operands = (_shape((1, rows, hidden), ml_dtypes.bfloat16), _shape((1, hidden), ml_dtypes.bfloat16))
            yield _measured(
                row,
                lambda operands=operands: _events(
                    norm.rmsnorm_quant_kernel, (*operands, norm.RmsNormQuantKernelArgs()), {}, chip, 2
                ),
                row.size // rows,
            )
    yield Case(
        kernel="attention_tkg, batch 16, 80/8 heads, flat cache",
        size=4096,
        chip="trn2",
        measured_us=_NO_FIGURE,
        events=lambda: _tkg(checkout, 16, 10, 4096, 0),
        scale=8,
    )


def backward(checkout: Path) -> Iterator[Case]:
    """attention_bwd and ours, bfloat16, one head, without a mask and causal, on each chip; nothing is published of either."""
    sys.path.insert(0, str(checkout / "src"))
    kernel = importlib.import_module("nkilib_src.nkilib.core.attention.attention_bwd").attention_bwd
    for name in CHIPS:
        chip = get_chip(name)
        for size, masked in itertools.product((4096, 8192), (False, True)):
            problem, turned = (
                replace(causal(size), row_statistics=True, out_rest=True),
                _shape((1, 1, 128, size), ml_dtypes.bfloat16),
            )
            problem = problem if masked else replace(problem, mask=Mask())
            operands = (*(turned,) * 5, _shape((1, 1, 128, size // 128), np.float32))
            public = partial(_events, kernel, operands, {"mixed_precision": True, "use_causal_mask": masked}, chip)
            ours = partial(attention_events, problem, chip, kernel="flash_backward")
            for title, events in (("attention_bwd", public), ("flash_backward of this package", ours)):
                yield Case(
                    kernel=title + ", causal" * masked,
                    size=size,
                    chip=name,
                    measured_us=_NO_FIGURE,
                    events=events,
                    open_copies=events is public,
                )


def _measured(row: Measurement, events: Callable[[], Sequence[Event]], scale: int = 1) -> Case:
    return Case(
        kernel=f"{row.subject}, {row.shape}",
        size=row.size,
        chip=row.chip,
        measured_us=row.us,
        events=events,
        scale=scale,
        row=row,
    )


def _cte(heads: int, kv_heads: int, keys: int) -> dict[str, Any]:
    shapes = {"q": (heads, keys, 128), "k": (kv_heads, 128, keys), "v": (kv_heads, keys, 128)}
    return {name: _shape(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()}


def _tkg(checkout: Path, batch: int, heads: int, keys: int, block: int) -> Sequence[Event]:
    """attention_tkg through the wrapper kernel of the library's own test, which is taken out of the test's file alone."""
    core = "nkilib_src.nkilib.core"
    names = ("attention.attention_tkg", "attention.attention_tkg_utils", "utils.allocator", "utils.logging")
    space: dict[str, Any] = {}
    for name in names:
        space |= vars(importlib.import_module(f"{core}.{name}"))
    language = space["nl"] = importlib.import_module("nki.language")
    space |= {"nki": importlib.import_module("nki"), "nisa": importlib.import_module("nki.isa")}
    path = checkout / "test/integration/nkilib/core/attention/test_attention_tkg.py"
    (wrapper,) = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "attn_tkg_wrapper"
    ]
    wrapper.decorator_list = []
    exec(compile(ast.Module([wrapper], []), str(path), "exec"), space)  # the user names the checkout; docs/security.md
    config = space["AttnTKGConfig"](batch, heads, 1, keys, keys, 128, block, tp_k_prior=True, strided_mm1=block == 0,
                                    use_pos_id=False, fuse_rope=False, qk_in_sb=True)  # fmt: skip
    cache = (batch * keys // block, block, 128) if block else (batch, 1, keys, 128)
    shapes = {
        "q": (128, batch * heads),
        "k_active": (128, batch),
        "v_active": (batch, 1, 1, 128),
        "k_prior": cache,
        "v_prior": cache,
    }
    tensors = {name: _shape(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()}
    tensors["mask"] = _shape((keys, batch, heads, 1), np.uint8)
    tensors["active_blocks_table"] = _shape((batch, keys // block), np.uint32) if block else None
    absent = dict.fromkeys(("inv_freqs", "rope_pos_ids", "start_pos_ids", "sink"))
    constants = {
        "attn_out_shape": (batch, heads, 128, 1),
        "k_out_shape": (batch, 1, 128, 1),
        "cfg": config,
        "dtype": language.bfloat16,
        "lnc": 2,
        "DBG": False,
    }
    return _events(space["attn_tkg_wrapper"], (), {**tensors, **absent, **constants}, get_chip("trn2"), 2)


def flat_tkg(checkout: Path, batch: int, heads: int, keys: int) -> Sequence[Event]:
    """attention_tkg of one kv head on a flat cache, two cores of trn2; the library's `src` is on the path."""
    return _tkg(checkout, batch, heads, keys, 0)


def docs(examples: Path) -> Iterator[Case]:
    """The tutorial's matrix multiplications (trn2, float32 4096 x 8192 x 8192, a quarter of n) and fused Mamba (trn1)."""
    sys.path[:0] = [str(examples / "matrix_multiplication"), str(examples / "fused_mamba")]
    matmul = importlib.import_module("matrix_multiplication_nki_kernels")
    trn1, trn2 = get_chip("trn1"), get_chip("trn2")
    operands = (_shape((8192, 4096), np.float32), _shape((8192, 2048), np.float32))
    for name, measured in (("nki_matmul_tiled_", 39_890), ("nki_matmul_fully_optimized_", 28_300)):
        kernel = getattr(matmul, name)
        yield Case(
            kernel=name.strip("_"),
            chip="trn2",
            measured_us=measured,
            scale=4,
            events=lambda kernel=kernel: _events(kernel, operands, {}, trn2),
        )
    mamba = importlib.import_module("mamba_nki_kernels")
    wide, narrow = _shape((1, 4096, 512), np.float32), _shape((1, 16, 512), np.float32)
    arguments = (wide, wide, _shape((4096, 16), np.float32), narrow, narrow)
    for name, measured in (("mamba_v1", 2_340), ("mamba_v2", 1_610)):
        kernel = getattr(mamba, name)
        yield Case(
            kernel=f"{name}, 4,096 channels, 16 states, 512",
            chip="trn1",
            measured_us=measured,
            events=lambda kernel=kernel: _events(kernel, arguments, {}, trn1),
        )
