"""XORWOW: the random generator of the engines, one stream per lane and slot.

The algorithm is Marsaglia's (Journal of Statistical Software 8, 2003): five words of xorshift and a Weyl counter. The
documentation names it and the size of its state (6 words a lane on GpSimd, 24 on Vector: four generators that take turns),
but not how a seed fills the state or how streams follow each other. The numbers here have the documented distribution and
state size and repeat from the same seed; they are not the chip's bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nki_hf.sim.execution.machine import Machine

__all__ = ["RandomState", "random_state"]

Array = np.ndarray[Any, Any]

WORDS = 6
SLOTS = {"gpsimd": 1, "vector": 4}
_WEYL = np.uint32(362437)


class RandomState:
    """Generators of one engine.

    Attributes:
      words: `uint32 [lanes, slots, 6]`; the last word is the Weyl counter. Updated in place.
    """

    def __init__(self, lanes: int, slots: int, seed: int) -> None:
        self.words: Array = np.empty((lanes, slots, WORDS), np.uint32)
        self.seed(seed)

    def seed(self, value: int) -> None:
        """Start every stream anew from a 32-bit seed."""
        sequence = np.random.SeedSequence(int(value) & 0xFFFFFFFF)
        self.words[...] = sequence.generate_state(self.words.size, np.uint32).reshape(self.words.shape)
        self.words[..., 0] |= np.uint32(1)  # xorshift must not start from zero

    def draw(self, first: int, rows: int, count: int) -> Array:
        """The next `uint32 [rows, count]` of lanes `first` to `first + rows`."""
        words = self.words[first : first + rows]
        slots = words.shape[1]
        turns = -(-count // slots)
        result = np.empty((turns, rows, slots), np.uint32)
        x, y, z, w, v, counter = (np.ascontiguousarray(words[..., index]) for index in range(WORDS))
        for turn in range(turns):
            shifted = x ^ (x >> np.uint32(2))
            x, y, z, w = y, z, w, v
            v = (v ^ (v << np.uint32(4))) ^ (shifted ^ (shifted << np.uint32(1)))
            counter = counter + _WEYL
            np.add(v, counter, out=result[turn])
        words[...] = np.stack([x, y, z, w, v, counter], axis=-1)
        return result.transpose(1, 0, 2).reshape(rows, -1)[:, :count]


def random_state(machine: Machine, engine: str) -> RandomState:
    """The generators of an engine of this core, seeded from the launch's seed when first used."""
    key = f"{engine}.random"
    state = machine.state.get(key)
    if state is None:
        seed = machine.options.seed + 2 * machine.core + (engine == "gpsimd")
        created = machine.state[key] = RandomState(int(machine.chip.partitions), SLOTS[engine], seed)
        machine.first_action(lambda: created.seed(seed))  # so that a replay draws what a fresh run draws
        return created
    found: RandomState = state
    return found
