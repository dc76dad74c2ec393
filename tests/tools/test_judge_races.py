"""Races of two cores that one tile does not have: the next turn writes what the other core still reads."""

import pytest

import nki_hf

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def softmax(x):
    rows, width = x.shape
    core, half = nl.program_id(0), width // 2
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    given = nl.ndarray(({slots}, P, half), nl.float32, buffer=nl.shared_hbm)
    for row in {loop}(0, rows, P):
        own, theirs = {own}, {theirs}
        mine = nl.ndarray((P, half), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=mine, src=x[nl.ds(row, P), core * half : (core + 1) * half])
        nisa.dma_copy(dst=given[own], src=mine)
        nisa.core_barrier(data=given, cores=(0, 1))
        other = nl.ndarray((P, half), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=other, src=given[theirs])
        if {barrier}:
            nisa.core_barrier(data=given, cores=(0, 1))
        top, top_of_other = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf), nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=mine, axis=1)
        nisa.tensor_reduce(dst=top_of_other, op=nl.maximum, data=other, axis=1)
        nisa.tensor_tensor(dst=top, data1=top, data2=top_of_other, op=nl.maximum)
        nisa.tensor_scalar(dst=top, data=top, op0=nl.multiply, operand0=-1.0)
        total, more = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf), nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=mine, op=nl.exp, data=mine, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.activation_reduce(dst=other, op=nl.exp, data=other, bias=top, reduce_op=nl.add, reduce_res=more)
        nisa.tensor_tensor(dst=total, data1=total, data2=more, op=nl.add)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=mine, data=mine, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[nl.ds(row, P), core * half : (core + 1) * half], src=mine)
    return out
"""
RIGHT = {"slots": "2", "loop": "range", "own": "core", "theirs": "1 - core", "barrier": "True"}
RING = {"slots": "4", "own": "2 * (row // P % 2) + core", "theirs": "2 * (row // P % 2) + 1 - core", "barrier": "False"}


def _judged(folder, at=1024, **changes):
    file = folder / "kernel.py"
    file.write_text(KERNEL.format(**{**RIGHT, **changes}))
    return nki_hf.judge(file, "softmax", check=(128, 384), at=at, chip=("trn2",), lnc=2)


@pytest.mark.parametrize("loop", ["range", "nl.dynamic_range"])
def test_a_tile_that_the_next_turn_overwrites_is_a_race(loop, tmp_path):
    """At 128 rows there is one turn, and no race."""
    record = _judged(tmp_path, loop=loop, barrier="False")
    assert (record["passed"], record["stage"]) == (False, "races"), record["sentence"]
    assert "core_barrier" in record["sentence"]


def test_a_race_that_only_a_timed_size_has_fails(tmp_path):
    record = _judged(tmp_path, barrier="rows < 1024")
    assert (record["passed"], record["stage"]) == (False, "races"), record["sentence"]
    assert "at size 1,024: " in record["findings"][0]["message"]


@pytest.mark.parametrize("changes", [{}, {"loop": "nl.dynamic_range"}, RING], ids=["twice", "at run time", "two slots"])
def test_cores_that_wait_for_each_other_pass(changes, tmp_path):
    """With two slots the barrier of the next turn stands between a read and the write over it."""
    record = _judged(tmp_path, **changes)
    assert record["passed"], record["sentence"]
