"""Wall time of one attention layer on the simulator beside torch's eager formula and sdpa: python tools/layer_speed.py.

Head dim 128, bfloat16, causal, batch 1; all three take the same tensors, one after another in one process. The first call of
a size traces the kernel, later ones replay the recording.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

import nki_hf
from nki_hf.backends.simulator import simulator_backend
from nki_hf.settings import settings
from nki_hf.tools.program import finished

_SIZES = ((2048, 4, 4), (512, 16, 8), (2048, 16, 8), (4096, 16, 8))  # tokens, query heads, key heads
_HEAD_DIM = 128
_REPLAYS = 3


def _eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Transformers' eager formula, `[batch, heads, seqlen, head_dim]`, k and v already repeated."""
    hidden = torch.full((q.shape[2], q.shape[2]), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
    scores = torch.matmul(q, k.transpose(2, 3)) * _HEAD_DIM**-0.5 + hidden
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    """Print the table."""
    columns = ("tokens", "heads", "eager s", "sdpa s", "first s", "first / eager", "replay s", "replay / eager")
    table = Table(*columns, "thousand instructions/s", "GFLOP/s", title="wall time of one layer; replay: the best of three")
    backend = simulator_backend(settings().chip)
    for tokens, heads, kv_heads in _SIZES:
        q, k, v = (torch.randn(1, count, tokens, _HEAD_DIM, dtype=torch.bfloat16) for count in (heads, kv_heads, kv_heads))
        keys, values = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, v))
        eager = min(_seconds(lambda a=(q, keys, values): _eager(*a)) for _ in range(2))
        sdpa = min(
            _seconds(lambda a=(q, keys, values): torch.nn.functional.scaled_dot_product_attention(*a, is_causal=True))
            for _ in range(2)
        )
        first = _seconds(lambda a=(q, k, v): nki_hf.attention(*a, causal=True))
        before = backend.instructions_replayed
        replays = [_seconds(lambda a=(q, k, v): nki_hf.attention(*a, causal=True)) for _ in range(_REPLAYS)]
        replayed, best = (backend.instructions_replayed - before) / _REPLAYS, min(replays)
        flops = 2 * 2 * tokens * tokens * _HEAD_DIM * heads / 2  # two products, the visible half
        row = (f"{tokens:,}", f"{heads}/{kv_heads}", f"{eager:.2f}", f"{sdpa:.2f}", f"{first:.2f}", f"{first / eager:.2f}")
        table.add_row(*row, f"{best:.2f}", f"{best / eager:.2f}", f"{replayed / best / 1e3:.1f}", f"{flops / best / 1e9:.0f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    with torch.no_grad():
        raise SystemExit(finished(main))
