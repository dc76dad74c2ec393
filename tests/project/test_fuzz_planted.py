"""Faults that are planted in the package, the simulator or a door: the searches of random problems and kernels find them."""

import dataclasses
import functools
import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import nki_hf
from nki_hf.adapters import op_gradients
from nki_hf.adapters.packed import pieces
from nki_hf.kernels.flash_const_max import call
from nki_hf.kernels.flash_const_max.tuning import TABLE
from nki_hf.kernels.flash_decode import plan as flash_decode_plan
from nki_hf.sim.isa.operators import OPERATORS
from tools.fuzz import attention_call, attention_check, kernel_issue, kernel_programs
from tools.fuzz.attention_packs import draw_pack
from tools.fuzz.attention_problems import PLAIN
from tools.fuzz.kernel_check import check_program, without_refused
from tools.fuzz.search import KINDS, search, wrong_with

ROOT = Path(__file__).parents[2]


def test_a_planted_fault_of_an_operator_is_found_made_small_and_reproduced(tmp_path, monkeypatch):
    monkeypatch.setattr(OPERATORS["subtract"], "compute", lambda x, y, out=None: np.subtract(y, x, out=out))
    found = search(["kernels"], 0, tmp_path, count=40, say=lambda line: None)
    assert found.files
    text = found.files[0].read_text()
    assert text.count("'op':") <= 2
    assert "'subtract'" in text
    monkeypatch.undo()
    again = subprocess.run([sys.executable, found.files[0]], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (again.returncode, again.stdout) == (0, "nothing is wrong\n"), again.stderr


def test_a_planted_fault_of_a_front_door_is_found_and_made_small(tmp_path, monkeypatch):
    right = nki_hf.attention

    @functools.wraps(right)
    def off_by_one(*args, window=None, **options):
        return right(*args, window=window + 1 if type(window) is int and 1 <= window < 60 else window, **options)

    monkeypatch.setattr(attention_check.nki_hf, "attention", off_by_one)
    found = search(["attention"], 0, tmp_path, count=40, say=lambda line: None)
    assert found.files
    text = found.files[0].read_text()
    assert "'window'" in text
    assert text.count("': ") <= 6  # few of the fields are left


def test_a_planted_fault_of_flash_const_max_is_found_in_bands(monkeypatch):
    """Under the plan constants of another kind, so that those are shown to arrive."""
    case = {
        **PLAIN,
        "dtype": "bfloat16",
        "kernel": "flash_const_max",
        "seqlen_q": 140,
        "seqlen_kv": 140,
        "causal": True,
        "constants": "longest",
        "strict": True,
    }
    assert not attention_check.check_problem(case)
    right, asked = call.plan_const_max, set()

    def wider(*args):
        found = right(*args)
        asked.add((found.lag, found.copied))
        return dataclasses.replace(found, ahead=found.ahead + 1)

    monkeypatch.setattr(call, "plan_const_max", wider)
    assert attention_check.check_problem(case).startswith("out errs by")
    longest = TABLE["trn2"]["longest"]
    assert asked == {(longest.lag, longest.copied)}


BIASED = {
    "mask": "float",
    "mask_axes": (1, 0, 1),
    "mask_learns": True,
    "gradients": True,
    "group": 2,
    "batch_q": 2,
    "batch_kv": 2,
}


LEARNT_BIASES = {
    "mask": BIASED,
    "mask expanded over the heads": {**BIASED, "mask_form": "expanded"},
    "mask of one entry for all keys, which only a sink gives a gradient": {**BIASED, "mask_form": "one_key", "sink": "normal"},
    "position_bias": {**BIASED, "front": "transformers", "mask_learns": False, "position_bias": "learned"},
}


@pytest.mark.parametrize("name", LEARNT_BIASES)
def test_a_planted_fault_of_the_gradient_of_a_bias_is_found(monkeypatch, name):
    case = LEARNT_BIASES[name]
    assert not attention_check.check_problem(case)
    right = op_gradients.gradients_of

    def too_large(*args, **options):
        found = right(*args, **options)
        return dataclasses.replace(found, dbias=1.01 * found.dbias)

    monkeypatch.setattr(op_gradients, "gradients_of", too_large)
    assert attention_check.check_problem(case).startswith(f"d{name.split()[0]} errs by")


@pytest.mark.parametrize("number", [2, 3])
def test_gradients_that_differ_when_they_are_taken_again_are_found(monkeypatch, number):
    """2: those of the same output; 3: those of a second call."""
    right, calls = op_gradients.gradients_of, itertools.count(1)

    def another(*args, **options):
        found = right(*args, **options)
        return (
            found if next(calls) != number else dataclasses.replace(found, dbias=torch.nextafter(found.dbias, found.dbias + 1))
        )

    monkeypatch.setattr(op_gradients, "gradients_of", another)
    expected = {2: "AssertionError", 3: "dmask of a second call has other bits"}[number]
    assert wrong_with(KINDS["biases"], BIASED).startswith(expected)


def test_values_that_are_kept_from_the_call_that_was_recorded_are_found(monkeypatch):
    kept = {}
    right = attention_check.nki_hf.attention

    def recorded(q, *args, **options):
        return right(kept.setdefault(q.shape, q), *args, **options)

    case = {"recorded": "other", "lse": True}
    assert not attention_check.check_problem(case)
    monkeypatch.setattr(attention_check.nki_hf, "attention", recorded)
    assert attention_check.check_problem(case).startswith("out errs by")


PLANTED = {
    "the bounds of a row of keys, read off a mask": (
        {"mask": "runs", "mask_axes": (0, 0, 1), "seqlen_q": 9, "seqlen_kv": 40},
        ("nki_hf.adapters.mask_values", "_runs", lambda right: lambda seen: (right(seen)[0], right(seen)[1] - 1)),
    ),
    "a mask that holds other values now": (
        {"mask": "band", "mask_axes": (0, 0, 1), "seqlen_q": 9, "seqlen_kv": 40, "recorded": "mask", "mask_written": "data"},
        ("nki_hf.adapters.masks", "same_values", lambda right: lambda now, then: True),
    ),
    "sinks under another name": (
        {"front": "transformers", "sink": "normal", "sink_name": "sinks"},
        ("tools.fuzz.attention_fronts", "nki_attention",
         lambda right: lambda *given, sinks=None, **more: right(*given, **more)),
    ),
    "indices of keys": (
        {"front": "transformers", "chosen_keys": 3, "seqlen_kv": 20},
        ("nki_hf.adapters.transformers", "restrict_to_indices",
         lambda right: lambda indices, *given, **more: right(indices.clamp(min=0), *given, **more)),
    ),
    "gradients of lse alone": (
        {"gradients": True, "lse": True, "loss": "lse"},
        ("nki_hf.adapters.op_gradients", "gradients_of",
         lambda right: lambda call, results, dout, *given, **more: right(call, results, dout + 1, *given, **more)),
    ),
    "no keys beside a sink": (
        {"seqlen_kv": 0, "sink": "normal", "lse": True},
        ("nki_hf.adapters.torch_op", "trivial_result", lambda right: lambda problem, q, v, sink: right(problem, q, v)),
    ),
    "packed rows": (
        {"front": "varlen", "dtype": "bfloat16", "lengths": ((300, 300), (5, 700), (1, 9), (0, 3)), "seqlen_q": 306,
         "seqlen_kv": 1012, "causal": True, "window": 30},
        ("nki_hf.adapters.packed.attend", "join",
         lambda right: lambda parts, dim: (right(parts, dim)[0] / 2, right(parts, dim)[1])),
    ),
    "pages": (
        {"front": "varlen", "lengths": ((4, 40), (2, 9)), "seqlen_q": 6, "seqlen_kv": 49, "pages": 7},
        ("nki_hf.adapters.flash_face", "_of_pages", lambda right: lambda pages, *given: right(pages.flip(1), *given)),
    ),
    "a cache whose new keys are turned": (
        {"front": "kvcache", "seqlen_q": 2, "seqlen_kv": 30, "batch_q": 2, "batch_kv": 2,
         "cache": {"new": 2, "rotary": "interleaved", "leftpad": True, "rows": True, "one_length": False}},
        ("nki_hf.adapters.flash_kvcache", "_rotated",
         lambda right: lambda tensor, cos, sin, *given, **more: right(tensor, cos, -sin, *given, **more)),
    ),
    "merged parts": (
        {"front": "merge", "seqlen_kv": 40, "parts": (3, 20), "lse": True},
        ("nki_hf.adapters.merge", "join",
         lambda right: lambda parts, dim: (right(parts, dim)[0].flip(0), right(parts, dim)[1])),
    ),
    "keys beyond the first chunk of a decode step": (
        {"seqlen_q": 1, "seqlen_kv": 4100, "kernel": "flash_decode", "dtype": "bfloat16"},
        ("nki_hf.kernels.flash_decode.plan", "visited_keys", lambda right: lambda problem: min(2048, right(problem))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_behind_another_front_or_form_is_found(monkeypatch, name):
    case, (module, function, wrong) = PLANTED[name]
    assert not attention_check.check_problem(case)
    owner = importlib.import_module(module)
    monkeypatch.setattr(owner, function, wrong(getattr(owner, function)))
    forget_plans()
    assert wrong_with(KINDS["forms"], case)
    monkeypatch.undo()
    forget_plans()


def forget_plans():
    attention_call._forget_decisions()
    flash_decode_plan.plan_decode.cache_clear()


def test_a_kernel_that_the_simulator_breaks_on_is_found(tmp_path, monkeypatch):
    def broken(*given, **options):
        raise IndexError("here")

    monkeypatch.setattr(kernel_issue.nisa, "tensor_scalar", broken)
    found = search(["kernels"], 0, tmp_path, count=20, say=lambda line: None)
    assert found.files
    assert "IndexError" in found.files[0].read_text()


def test_a_replay_that_differs_is_found(monkeypatch):
    """The first value that a loop's tile has is kept from the recording."""
    program, _ = without_refused(kernel_programs.draw_program(3))
    assert not check_program(program)
    from nki_hf.sim.run.program import Program

    right = Program.__call__
    monkeypatch.setattr(Program, "__call__", lambda self, inputs: [each + 1 for each in right(self, inputs)])
    assert "replay" in check_program(program)


@pytest.mark.parametrize("instead", [float("inf"), float("nan"), -1e38, 0.0])
def test_a_planted_lse_of_rows_without_keys_is_found(monkeypatch, instead):
    case = {"seqlen_q": 9, "seqlen_kv": 40, "ahead": 1, "q_offset": -5, "lse": True}
    right = attention_check.nki_hf.attention

    def wrong(*given, **options):
        out, lse = right(*given, **options)
        return out, torch.where(lse == -torch.inf, instead, lse)

    assert not attention_check.check_problem(case)
    monkeypatch.setattr(attention_check.nki_hf, "attention", wrong)
    assert attention_check.check_problem(case).startswith("lse is ")


def test_a_planted_lse_of_flash_const_max_is_found(monkeypatch):
    """Off by a thousandth, which is less than one weight of 16 bits is rounded by."""
    case = {"dtype": "bfloat16", "kernel": "flash_const_max", "seqlen_q": 300, "seqlen_kv": 700, "lse": True, "scale": 0.1}
    assert not attention_check.check_problem(case)
    right = attention_check.nki_hf.attention

    def wrong(*given, **options):
        out, lse = right(*given, **options)
        return out, lse + 1e-3

    monkeypatch.setattr(attention_check.nki_hf, "attention", wrong)
    assert attention_check.check_problem(case).startswith("lse errs by")


def test_a_sequence_whose_nan_reaches_another_of_its_pack_is_found(monkeypatch):
    """Pieces that fill a launch had the first rows of the pack in the place of their own sequence's."""
    case, right = draw_pack(777211), pieces._launch
    assert not attention_check.check_problem(case)

    def idle_ones_of_another(kind, group, lo, hi):
        found = right(kind, group, lo, hi)
        found.rows[len(group) :], found.keys[len(group) :] = 0, 0
        return found

    monkeypatch.setattr(pieces, "_launch", idle_ones_of_another)
    pieces.cut.cache_clear()
    try:
        assert "of a sequence is another one" in attention_check.check_problem(case)
    finally:
        pieces.cut.cache_clear()
