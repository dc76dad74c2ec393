"""What GpSimd's patterns leave in the host's memory."""

import gc
import tracemalloc

import numpy as np

from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl

TURNS, ELEMENTS = 24, 16_384


def large_patterns(x):
    """Patterns `[128, ELEMENTS]` of 8 MiB that differ in their offset."""
    out = nl.ndarray((128, 1), nl.int32, buffer=nl.shared_hbm)
    for turn in range(TURNS):
        numbers = nl.ndarray((128, ELEMENTS), nl.int32, buffer=nl.sbuf, address=(0, 0))
        nisa.iota(dst=numbers, pattern=[[1, ELEMENTS]], offset=turn, channel_multiplier=3)
        nisa.affine_select(
            dst=numbers, pattern=[[1, ELEMENTS]], offset=-turn, channel_multiplier=0, on_true_tile=numbers, on_false_value=7
        )
    nisa.dma_copy(dst=out, src=numbers[:, TURNS - 1 : TURNS])
    return out


def test_values_of_large_patterns_do_not_stay():
    """What stays of 24 patterns and 24 selections (8 and 2 MiB each) is less than three patterns."""
    tracemalloc.start()
    try:
        result = launch(large_patterns, (np.zeros((1, 1), np.float32),), options=SimOptions())
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Only the column of the last turn's number is selected: its offset and its number are 23, and 3 a row.
    np.testing.assert_array_equal(result.outputs[0][:, 0], 2 * (TURNS - 1) + 3 * np.arange(128))
    assert kept < 24 << 20
