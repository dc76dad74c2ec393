"""How fast 8 query tokens could be beside one, by the engines' rates alone.

    python tools/decode_floor.py [--write]

For 2,048 keys of one kv head of 128 in bfloat16: us to load them; and us of the busiest engine if no instruction cost anything
but its columns, one a cycle, and no engine ever waited. Two designs:

    keys on partitions   what flash_decode does: scores [keys, rows]. Tensor: turns of keys, the mask, scores, minus the maximum
                         (float32: four passes) and values, at least 64 columns each; Vector: maxima and sums; Scalar: exp in
                         16 bits for the product and in float32 for the sums
    rows on partitions   scores [rows, keys]: minus the maximum and the sum come with exp; but every instruction passes over all
                         keys for however few rows, and probs have to be turned

The copies of turned keys (and probs) out of PSUM are divided between Vector and Scalar as it suits best. `needed` is the better
design's floor over what 1.1 times one token's bound allows (loading, or the floor of one token): above 1 it cannot be reached.
`--write` puts the table into docs/timing.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.chips import CHIPS, Chip, get_chip
from nki_hf.tools.program import finished
from tools.page_block import TIMING, replace_block

KEYS, TILES, LEAST = 2048, 16, 64
GROUPS = (1, 2, 4, 8)
TOKENS = 8


def keys_on_partitions(chip: Chip, rows: int) -> float:
    """The busiest engine, us."""
    scores = TILES * rows
    tensor = KEYS + 2 * TILES * max(LEAST, rows) + scores + 4 * scores
    return _busiest(chip, tensor, 2 * scores, 2 * scores, KEYS)


def rows_on_partitions(chip: Chip, rows: int) -> float:
    """The busiest engine, us."""
    turned = TILES * max(LEAST, rows)
    return _busiest(chip, 3 * KEYS + 2 * turned, KEYS, KEYS, KEYS + TILES * rows)


def _busiest(chip: Chip, tensor: int, vector: int, scalar: int, copies: int) -> float:
    """Tensor, or Vector and Scalar with `copies` columns divided between them: the busier, us."""
    rates = float(chip.vector_ghz), float(chip.scalar_ghz)
    own = vector / rates[0], scalar / rates[1]
    together = (vector + scalar + copies) / sum(rates)  # if that keeps both equally busy
    return max(tensor / float(chip.tensor_ghz), together, *own) / 1e3


def load_us(chip: Chip) -> float:
    """How long the DMA engines of a core read the keys and values, us."""
    return 2 * KEYS * 128 * 2 / float(chip.dma_engines * chip.dma_engine_bytes_per_ns) / 1e3


def needed(chip: Chip, group: int) -> float:
    """The better design's floor of 8 tokens over what is allowed."""
    allowed = 1.1 * max(load_us(chip), keys_on_partitions(chip, group))
    return min(design(chip, TOKENS * group) for design in (keys_on_partitions, rows_on_partitions)) / allowed


def table() -> list[str]:
    """The table's lines."""
    titles = ["chip", "load us", *(f"group {group}: keys / rows on partitions, us (needed)" for group in GROUPS)]
    lines = [f"| {' | '.join(titles)} |", f"|---|{'---:|' * (len(titles) - 1)}"]
    for name in CHIPS:
        chip, cells = get_chip(name), []
        for group in GROUPS:
            floors = [design(chip, TOKENS * group) for design in (keys_on_partitions, rows_on_partitions)]
            cells.append(f"{floors[0]:.2f} / {floors[1]:.2f} ({needed(chip, group):.2f})")
        lines.append(f"| {' | '.join([name, f'{load_us(chip):.2f}', *cells])} |")
    return lines


def main() -> int:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    lines = table()
    print("\n".join(lines))
    if parser.parse_args().write:
        replace_block(TIMING, "decode-floor", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(finished(main))
