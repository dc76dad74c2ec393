"""Decode of many sequences: one query each against caches of many lengths, which kernel runs it, and how many programs."""

import re
from pathlib import Path

import pytest
import torch
from varlen_reference import packed, starts

import nki_hf
from nki_hf.backends import simulator
from nki_hf.dispatch import decide
from nki_hf.flash_attn import flash_attn_varlen_func
from nki_hf.problem import Mask, Problem

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()


@pytest.fixture
def programs(monkeypatch):
    """What a device would compile: kernel, shapes and constants of every launch."""
    found, run = [], simulator.SimulatorBackend.run

    def noted(self, call):
        shapes = tuple((name, tuple(each.shape)) for name, each in call.tensors.items() if each is not None)
        found.append((call.kernel, shapes, repr(sorted(call.constants.items()))))
        return run(self, call)

    monkeypatch.setattr(simulator.SimulatorBackend, "run", noted)
    return found


def _step(lengths, seed=0, heads=(8, 2), head_dim=64):
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(len(lengths), heads[0], head_dim, generator=draw).bfloat16()
    k, v = (torch.randn(sum(lengths), heads[1], head_dim, generator=draw).bfloat16() for _ in range(2))
    return q, k, v, starts([1] * len(lengths)), starts(lengths), 1, max(lengths)


LONG = [700, 2048, 1300, 513, 2000, 1024, 1999, 600, 1800, 900, 1500, 1025, 2047, 777, 1234, 1600]


def test_decode_of_many_sequences_runs_the_decode_kernel_and_their_lengths_are_data(programs):
    nki_hf.explain(reset=True)
    for seed, lengths in enumerate((LONG, LONG[::-1], [600] * 5, [2048, 514, 1033])):
        step = _step(lengths, seed)
        out = flash_attn_varlen_func(*step, causal=True)
        expected, _ = packed(*step[:3], [1] * len(lengths), lengths, causal=True)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=4e-3)
    rows = nki_hf.explain(reset=True).rows
    assert [(row.first.kernel, row.phase, row.first.problem.mask.form, row.calls) for row in rows] == [
        ("flash_decode", "decode", "bounds", 4)
    ]
    assert len(programs) == 4
    assert len(set(programs)) == 1


def test_lengths_of_a_growing_batch_need_a_program_for_each_doubling(programs):
    for lengths in ([3], [500, 20], [513], [512, 2048, 1], [2049, 7], [4096, 9, 600]):
        flash_attn_varlen_func(*_step(lengths, heads=(4, 2)), causal=True)
    assert {dict(shapes)["k"][2] for _, shapes, _ in programs} == {512, 2048, 4096}
    assert len(set(programs)) == 3


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_in_one_cache_stays_there_in_the_decode_kernel(bad):
    lengths = [2048, 30, 700, 257, 1, 2000, 513]
    q, k, v, *rest = _step(lengths, heads=(4, 2))
    nki_hf.explain(reset=True)
    clean = flash_attn_varlen_func(q, k, v, *rest, causal=True)
    assert {row.first.kernel for row in nki_hf.explain(reset=True).rows} == {"flash_decode"}
    for sick in range(len(lengths)):
        own = slice(sum(lengths[:sick]), sum(lengths[: sick + 1]))
        keys, values = k.clone(), v.clone()
        keys[own], values[own] = bad, bad
        out = flash_attn_varlen_func(q, keys, values, *rest, causal=True)
        others = [n for n in range(len(lengths)) if n != sick]
        assert torch.equal(out[others], clean[others])


ROWS = re.findall(r"^\| (\d+), (\d+), (\d+), (\w+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=[" ".join(row[:4]) for row in ROWS])
def test_the_pages_table_of_decode_kernels_is_what_dispatch_says(row):
    heads, kv_heads, head_dim, dtype, kernel, decode_us, prefill_us = row
    problem = Problem(
        batch=16,
        num_heads_q=int(heads),
        num_heads_kv=int(kv_heads),
        seqlen_q=1,
        seqlen_kv=512,
        head_dim=int(head_dim),
        head_dim_v=int(head_dim),
        dtype=dtype,
        mask=Mask(runtime_bounds=True),
    )
    found = decide(problem, backend="simulator", chip="trn2")
    assert found.kernel == kernel
    told = dict(re.findall(r"(\w+) \(([\d.]+) us", found.why))
    assert told == {"flash_decode": decode_us, "flash_prefill": prefill_us}


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_in_16_bits_grouped_heads_and_long_caches_decode_in_the_decode_kernel(chip):
    grouped, alone = (
        [(16, 8, 128), (32, 8, 128), (32, 4, 64), (64, 8, 64), (8, 1, 256), (4, 2, 16)],
        [(16, 16, 128), (12, 12, 64)],
    )
    for heads, kv_heads, head_dim in grouped + alone:
        for keys in (512, 2048, 4096, 16384):
            problem = Problem(
                batch=16,
                num_heads_q=heads,
                num_heads_kv=kv_heads,
                seqlen_q=1,
                seqlen_kv=keys,
                head_dim=head_dim,
                head_dim_v=head_dim,
                dtype="bfloat16",
                mask=Mask(runtime_bounds=True),
            )
            if heads > kv_heads or keys > 512:
                assert decide(problem, backend="simulator", chip=chip).kernel == "flash_decode", problem
