"""One core stands for two that do the same: its instructions, and its time, are those of the whole launch."""

from dataclasses import replace

import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import UnsupportedProblem
from nki_hf.lang import nisa, nl
from nki_hf.problem import Mask
from nki_hf.sim import SimOptions, launch
from nki_hf.sim.execution.cores import CoresMeet
from nki_hf.timing.schedule import schedule
from nki_hf.tools.latency import attention_us
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import alike, attention_events, telling_events

TRN2 = get_chip("trn2")
SHAPES = (
    "hq=4,hkv=2,sq=256,causal",
    "b=2,hq=3,hkv=1,sq=128,skv=300,causal",
    "b=4,hq=2,hkv=2,sq=130,window=64,causal",
    "hq=8,hkv=4,sq=1,skv=2048",
    "hq=4,hkv=2,sq=256,d=256,causal",
    "b=3,hq=2,sq=128",
    "hq=3,sq=200,causal",
    "sq=300",
)
KERNELS = ("flash_prefill", "flash_const_max", "flash_decode", "flash_backward")


def problems():
    for shape in SHAPES:
        problem = problem_of(shape)
        yield shape, problem
        mask = problem.mask
        yield f"{shape} bounds", replace(problem, mask=Mask(runtime_bounds=True))
        biased = replace(problem, mask=replace(mask, bias="additive", bias_heads=True, bias_rows=True))
        yield f"{shape} bias", biased
        yield f"{shape} bias gradient", replace(biased, bias_gradient=True)


def form(event):
    regions = [(r.shape, r.strides, r.dtype.name, r.indirect, r.buffer.space) for r in (*event.reads, *event.writes)]
    return event.engine, event.queue, event.opcode, event.line, regions


@pytest.mark.parametrize("kernel", KERNELS)
def test_cores_that_are_alike_issue_the_same(kernel):
    of_both = 0
    for label, problem in problems():
        try:
            events = attention_events(problem, TRN2, 2, kernel=kernel)
        except UnsupportedProblem:
            continue
        told, cores = telling_events(problem, TRN2, 2, kernel=kernel)
        of_core = [[form(event) for event in events if event.core == core] for core in (0, 1)]
        if cores is None:
            assert not alike(problem, kernel, 2), label
            assert [form(event) for event in told] == [form(event) for event in events], label
        else:
            assert cores == 2
            assert of_core[0] == of_core[1] == [form(event) for event in told], label
            of_both += 1
    assert of_both >= 2


@pytest.mark.parametrize("window", [None, 64])
@pytest.mark.parametrize("kernel", ["flash_prefill", "flash_const_max"])
def test_the_time_of_one_of_them_is_that_of_both(kernel, window):
    for chip in (TRN2, get_chip("trn3")):
        problem = problem_of("hq=4,hkv=2,sq=512,causal")
        whole = schedule(attention_events(problem, chip, 2, kernel=kernel), chip, window=window).total_ns
        events, cores = telling_events(problem, chip, 2, kernel=kernel)
        assert cores == 2
        assert schedule(events, chip, window=window, cores=cores).total_ns == whole
        assert attention_us(problem, chip, 2, window=window, kernel=kernel).us == pytest.approx(whole / 1e3, rel=1e-12)


def barrier(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    nisa.core_barrier(out, (0, 1))
    return out


def exchange(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    mine, other = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(dst=mine, src=x)
    here = nl.program_id(axis=0)
    nisa.sendrecv(src=mine, dst=other, send_to_rank=1 - here, recv_from_rank=1 - here, pipe_id=0)
    nisa.dma_copy(dst=out, src=other)
    return out


@pytest.mark.parametrize("kernel", [barrier, exchange])
def test_cores_that_meet_are_not_run_alone(kernel):
    x, options = np.zeros((128, 64), np.float32), SimOptions(chip=TRN2, values=False, checks=False)
    assert launch(kernel, (x,), options=options, lnc=2).events
    with pytest.raises(CoresMeet, match="core 0 meets the other one"):
        launch(kernel, (x,), options=options, lnc=2, first_core=True)


def test_half_a_launch_has_no_values():
    for options in (SimOptions(chip=TRN2), SimOptions(chip=TRN2, values=False)):
        with pytest.raises(ValueError, match="first_core=True needs values=False and checks=False"):
            launch(barrier, (np.zeros((128, 64), np.float32),), options=options, lnc=2, first_core=True)
