"""Tiles that do not fit from first to last use, though their values do: a doubt where others wrote them, a fault for ours."""

import warnings

import numpy as np
import pytest

import nki_hf.sim.language as nl
from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.stream.live_ranges import least_bytes
from nki_hf.timing.schedule import schedule

WIDTH = 30 * 1024  # float32: 120 KiB a partition, twice as much as trn2 holds two of
X = np.arange(128 * WIDTH, dtype=np.float32).reshape(128, WIDTH) % 97


def chunks(x, *, rows=128, again=False, turned=False):
    """Each chunk is loaded into one tile and lowered by one into another; `again` reads the first tile afterwards."""
    out = nl.ndarray((128, 1), nl.float32, buffer=nl.shared_hbm)
    first = nl.ndarray((128, WIDTH), nl.float32, buffer=nl.sbuf)
    second = nl.ndarray((128, WIDTH), nl.float32, buffer=nl.sbuf)
    total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=first, value=0.0)
    for _ in range(2):
        nisa.dma_copy(dst=first[0:rows, :], src=x[0:rows, :])
        if turned:  # no element by element: the second half of the result comes from the first of the operand
            nisa.tensor_copy(dst=second[:, : WIDTH // 2], src=first[:, WIDTH // 2 :])
            nisa.tensor_copy(dst=second[:, WIDTH // 2 :], src=first[:, : WIDTH // 2])
        else:
            nisa.tensor_scalar(dst=second, data=first, op0=nl.subtract, operand0=1.0)
        nisa.tensor_reduce(dst=total, op=nl.add, data=second, axis=1)
        if again:
            nisa.tensor_reduce(dst=total, op=nl.add, data=first, axis=1)
    nisa.dma_copy(dst=out, src=total)
    return out


def run(**words):
    options = SimOptions(third_party=words.pop("third_party", True))
    return launch(chunks, (X,), words, options=options)


def test_a_result_may_take_the_place_of_an_operand_that_ends_there():
    with pytest.warns(SimulatorWarning, match="SBUF overflow: 245,76"):
        result = run()
    np.testing.assert_allclose(result.outputs[0][:, 0], X.sum(1) - WIDTH, rtol=1e-5)
    assert least_bytes(result.events, get_chip("trn2"))[0, "sbuf"] == 4 * WIDTH + 4  # one of the two, and a column of sums


@pytest.mark.parametrize(
    "words",
    [
        {"again": True},  # both values are needed at once
        {"rows": 64},  # the other rows of the first tile stay from one chunk to the next
        {"turned": True},
        {"third_party": False},
    ],
    ids=str,
)
def test_what_cannot_share_overflows(words):
    with pytest.raises(KernelFault, match="SBUF overflow"):
        run(**words)


def test_such_tiles_have_a_time():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatorWarning)
        events = run().events
    chip = get_chip("trn2")
    for window in (None, 64):
        scheduled = schedule(events, chip, window=window)
        alone = 2 * X.nbytes / float(chip.dma_engines) / float(chip.dma_engine_bytes_per_ns)  # the loads of two chunks
        assert scheduled.total_ns > alone
