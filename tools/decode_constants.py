"""The prices by which dispatch compares the kernels for few query rows (flash_decode/cost.py, flash_prefill/cost.py), from the
simulated kernels.

    python tools/decode_constants.py [--draws 1060] [--write]

Both kernels are simulated on random decode-sized problems, program order, the laws of the day; for each chip and width of dtype
the prices of `kernels.pricing`'s law are those with the least squares of log(told / simulated). It prints both tables as the
modules hold them, and for how many draws the cheaper estimate is not the faster kernel (10 minutes). `--write` alone makes
docs/serving.md's table of what dispatch takes a launch of 16 sequences to cost.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.chips import CHIPS, get_chip
from nki_hf.dispatch import decide
from nki_hf.errors import UnsupportedProblem
from nki_hf.kernels.flash_decode import cost as decode_cost
from nki_hf.kernels.flash_decode.plan import plan_decode
from nki_hf.kernels.flash_prefill import cost as prefill_cost
from nki_hf.kernels.flash_prefill.plan import plan_prefill
from nki_hf.kernels.pricing import ITEMSIZE, Prices
from nki_hf.problem import Mask, Problem
from nki_hf.tools.decode_latency import decode_step
from nki_hf.tools.program import finished
from nki_hf.tools.subjects import attention_candidate
from tools.page_block import replace_block

KERNELS = ("flash_decode", "flash_prefill")
SERVING = Path(__file__).parent.parent / "docs" / "serving.md"
TOLD = ((16, 8, 128, "bfloat16"), (32, 4, 64, "bfloat16"), (8, 1, 64, "float32"), (4, 2, 16, "float32"))
"""Rows of that page's table: query heads, kv heads, head_dim, dtype."""
TURNS = 3000
"""Of the descent."""
LARGEST = 70_000
"""Keys of all units times a part of the group: larger draws would only take longer."""


@dataclass(frozen=True)
class Draw:
    """A random decode-sized problem on a chip, with what each kernel takes: simulated, and as dispatch is told."""

    problem: Problem
    chip: str
    lnc: int
    us: dict[str, float]
    told: dict[str, float]

    @property
    def loss(self) -> float:
        """Time of the kernel that dispatch picks over that of the faster one, simulated; 1 where it picks that."""
        return self.us[min(KERNELS, key=lambda name: self.told[name])] / min(self.us.values())


def draw(seed: int) -> tuple[Problem, str, int]:
    """A decode-sized problem, a chip and a degree, by number."""
    some = random.Random(seed)
    chip = some.choice(list(CHIPS))
    lnc = 1 if chip == "trn1" else some.choice((1, 2))
    dtype = some.choice(("bfloat16", "float16", "float32", "float32"))
    kv_heads, group = some.choice((1, 1, 2, 2, 3, 4, 5, 8, 16)), some.choice((1, 1, 2, 3, 4, 7, 8, 16))
    batch, seqlen_q = some.choice((1, 1, 2, 3, 4, 8, 16)), some.choice((1, 1, 1, 2, 4, 5, 8, 16))
    head_dim = some.choice((16, 64, 64, 80, 96, 128, 128, 128, 192, 256))
    head_dim_v = some.choice((32, 64, 128, 256)) if some.random() < 0.1 else head_dim
    keys = int(2 ** some.uniform(4, 13.2))
    while batch * kv_heads * max(keys, 1024) * (1 + group // 4) > LARGEST and batch * keys > 64:
        batch, keys = (batch // 2, keys) if batch > 1 else (batch, keys // 2)
    keys = max(keys, seqlen_q)
    bounds, causal, windowed = some.random() < 0.4, some.random() < 0.5, some.random() < 0.1
    mask = Mask(
        runtime_bounds=bounds,
        q_offset=keys - seqlen_q if causal else 0,
        ahead=1 if causal else None,
        window=some.choice((64, 512, 1024)) if causal and windowed else None,
    )
    problem = Problem(
        batch=batch,
        num_heads_q=kv_heads * group,
        num_heads_kv=kv_heads,
        seqlen_q=seqlen_q,
        seqlen_kv=keys,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        dtype=dtype,
        mask=mask,
        softcap=20.0 if some.random() < 0.15 else None,
        sink=some.random() < 0.15,
    )
    return problem, chip, lnc


def simulated(seeds: Iterable[int]) -> list[Draw]:
    """The draws that both kernels take."""
    found = []
    for seed in seeds:
        problem, name, lnc = draw(seed)
        chip = get_chip(name)
        try:
            told = {kernel: attention_candidate(problem, chip, lnc, kernel=kernel).cost.us for kernel in KERNELS}
        except UnsupportedProblem:
            continue
        us = {kernel: decode_step(problem, chip, lnc, window=None, kernel=kernel).us for kernel in KERNELS}
        found.append(Draw(problem, name, lnc, us, told))
    return found


def counted(item: Draw, kernel: str) -> tuple[tuple[float, ...], float]:
    """The counts of a draw, and what its loads take."""
    problem, chip, lnc = item.problem, get_chip(item.chip), item.lnc
    if kernel == "flash_decode":
        plan = plan_decode(problem, chip)
        return decode_cost.counts(problem, plan, chip, lnc), decode_cost.loads(problem, plan, chip, lnc)
    found = plan_prefill(problem, chip, lnc)
    return prefill_cost.counts(problem, found, lnc), prefill_cost.loads(problem, found, chip, lnc)


def fitted(kernel: str, draws: list[Draw]) -> tuple[Prices, list[float]]:
    """The prices of draws of one chip and width, none negative, and what the law then tells of each."""
    pairs = [counted(item, kernel) for item in draws]
    counts, loads = (torch.tensor(part, dtype=torch.float64) for part in zip(*pairs, strict=True))
    seen = torch.tensor([item.us[kernel] for item in draws], dtype=torch.float64)
    fixed = float(get_chip(draws[0].chip).kernel_fixed_ns) / 1e3
    # From equal shares of the time, whatever the unit of a count is.
    share = float(seen.mean()) / counts.mean(0).clamp(min=1e-3) / (2 * counts.shape[1])
    logs = torch.log(torch.cat([torch.tensor([8.0], dtype=torch.float64), share])).requires_grad_()
    optimizer = torch.optim.Adam([logs], lr=0.03)
    for _ in range(TURNS):
        prices = logs.exp()
        told = fixed + prices[0] + torch.maximum(loads, counts @ prices[1:])
        optimizer.zero_grad()
        (torch.log(told / seen) ** 2).mean().backward()
        optimizer.step()
    edge, *each = (float(f"{value:.3g}") if value > 1e-4 else 0.0 for value in logs.detach().exp().tolist())
    return Prices(edge, tuple(each)), told.detach().tolist()


def told() -> list[str]:
    """The lines of docs/serving.md's table."""
    lines = ["| query heads, kv heads, head_dim, dtype | runs | flash_decode us | flash_prefill us |", "|---|---|---:|---:|"]
    for heads, kv_heads, head_dim, dtype in TOLD:
        problem = Problem(
            batch=16,
            num_heads_q=heads,
            num_heads_kv=kv_heads,
            seqlen_q=1,
            seqlen_kv=512,
            head_dim=head_dim,
            head_dim_v=head_dim,
            dtype=dtype,
            mask=Mask(runtime_bounds=True),
        )
        found = decide(problem, backend="simulator", chip="trn2")
        us = dict(re.findall(r"(\w+) \(([\d.]+) us", found.why))
        cells = [f"{heads}, {kv_heads}, {head_dim}, {dtype}", str(found.kernel), us["flash_decode"], us["flash_prefill"]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> int:
    """Print the tables, or write the page's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1060)
    parser.add_argument("--write", action="store_true", help="only the table of docs/serving.md")
    options = parser.parse_args()
    if options.write:
        replace_block(SERVING, "decode-kernels", "\n".join(told()))
        return 0
    groups: dict[tuple[str, int], list[Draw]] = defaultdict(list)
    for item in simulated(range(options.draws)):
        groups[item.chip, ITEMSIZE[item.problem.dtype]].append(item)
    estimates: dict[int, dict[str, float]] = defaultdict(dict)
    for kernel in KERNELS:
        print(f"{kernel}: PRICES = {{")
        for key in sorted(groups):
            prices, law = fitted(kernel, groups[key])
            print(f"    {key!r}: {prices!r},".replace("'", '"'), flush=True)
            for item, us in zip(groups[key], law, strict=True):
                estimates[id(item)][kernel] = us
        print("}")
    items = [
        Draw(item.problem, item.chip, item.lnc, item.us, estimates[id(item)]) for group in groups.values() for item in group
    ]
    for item in sorted(items, key=lambda item: -item.loss)[:20]:
        print(f"{item.loss:.2f} {item.chip} lnc={item.lnc} {item.us} {item.told} {item.problem}")
    print(f"{sum(item.loss > 1.1 for item in items)} of {len(items)} picks are more than 10 % slower than the other kernel")
    return 0


if __name__ == "__main__":
    sys.exit(finished(main))
