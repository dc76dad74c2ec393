"""The tables of docs/timing.md that need nothing but this package, written there between their markers.

    python tools/timing_tables.py [--write]

* `flash_prefill`: where the time of our kernel goes at 4,096 and 16,384 keys on each chip.
* `cliff`: v11 on trn1 where its working set stops fitting SBUF.

Every figure is simulated. Without `--write` the tables are printed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.chips import CHIPS
from nki_hf.observers.report import facts
from nki_hf.observers.timing import WAITS
from nki_hf.timing.schedule import DEFAULT_WINDOW
from nki_hf.timing.spills import spilled
from nki_hf.tools.modelled import ModelRequest, model
from nki_hf.tools.program import finished
from nki_hf.tools.subjects import events_of
from tools.page_block import TIMING, replace_block

__all__ = ["CLIFF", "SIZES", "cliff_row", "flash_row", "tables"]

SIZES = (4096, 16384)
CLIFF = (8192, 16384)
_NOTICED = 0.05
"""Share of the Tensor engine's time from which a wait is named."""


def flash_row(seqlen: int, chip: str) -> str:
    """One head of causal flash_prefill, head_dim 128, bfloat16, one core."""
    found = facts(model(ModelRequest(seqlen=seqlen, chip=chip), window=DEFAULT_WINDOW))
    engines = {row["engine"]: row for row in found["engines"]}
    waits = {name: engines["tensor"]["waiting"][name] for name in WAITS}
    named = [f"{name} {share:.0%}" for name, share in sorted(waits.items(), key=lambda item: -item[1]) if share >= _NOTICED]
    return _row(
        f"{seqlen:,}",
        chip,
        f"{found['total_us']:,.0f}",
        f"{found['executed_tflops']:.1f}",
        f"{found['executed_tflops'] / found['peak_tflops']:.0%}",
        *[f"{engines[name]['active']:.0%}" for name in _BUSY],
        ", ".join(named),
        ", ".join(f"{engines[name]['gain_us']:,.0f}" for name in _BUSY[1:]),
    )


def cliff_row(seqlen: int) -> str:
    """v11 on trn1, with what spilling adds."""
    plan = model(ModelRequest(kernel="v11", seqlen=seqlen, chip="trn1"), window=DEFAULT_WINDOW)
    live = {space: nbytes / 1024 for (_, space), nbytes in plan.high_water_bytes.items()}
    spills = plan.spills
    before = spilled(events_of("v11", seqlen, plan.chip), plan.chip)[1].peak_bytes["sbuf"] / 1024
    return _row(
        f"{seqlen:,}",
        f"{plan.total_ns / 1e3:,.0f}",
        f"{before:,.0f}",
        f"{live['sbuf']:,.0f}",
        f"{spills.stores:,}",
        f"{spills.loads:,}",
    )


def tables() -> dict[str, str]:
    """The body of every block, by name."""
    flash = [_row(*_FLASH), "|---:|---|---:|---:|---:|---:|---:|---:|---|---|"]
    flash += [flash_row(size, chip) for size in SIZES for chip in CHIPS]
    cliff = [_row(*_CLIFF), "|---:|---:|---:|---:|---:|---:|", *[cliff_row(size) for size in CLIFF]]
    return {"flash_prefill": "\n".join(flash), "cliff": "\n".join(cliff)}


_BUSY = ("tensor", "vector", "scalar")
_FLASH = (
    "keys",
    "chip",
    "us (sim)",
    "TFLOP/s executed (sim)",
    "of peak",
    *_BUSY,
    "waits of tensor",
    "gained if vector, scalar were free, us",
)
_CLIFF = (
    "keys",
    "us (sim)",
    "live at once as written, KiB",
    "most SBUF in use, KiB per partition",
    "spill stores",
    "spill loads",
)


def _row(*cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put them into docs/timing.md")
    asked = parser.parse_args(arguments)
    for name, body in tables().items():
        if asked.write:
            replace_block(TIMING, name, body)
        else:
            print(f"{name}\n{body}\n")


if __name__ == "__main__":
    raise SystemExit(finished(main))
