"""Random problems and random kernels: a sample of fixed seeds, and the search itself, which must find what is planted."""

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
from fuzz_seeds import nothing_wrong

import nki_hf
from nki_hf.adapters import op_gradients
from nki_hf.adapters.packed import pieces
from nki_hf.kernels.flash_const_max import call
from nki_hf.kernels.flash_const_max.tuning import TABLE
from nki_hf.kernels.flash_decode import plan as flash_decode_plan
from nki_hf.sim.isa.operators import OPERATORS
from tools.fuzz import attention_call, attention_check, attention_fronts, kernel_issue, kernel_programs, serving_problems
from tools.fuzz.attention_extras import draw_extra
from tools.fuzz.attention_forms import WAYS, draw_decode, draw_form, draw_way
from tools.fuzz.attention_given import given_of
from tools.fuzz.attention_packs import draw_pack
from tools.fuzz.attention_problems import PLAIN, draw_band, draw_learnt_bias, draw_problem, refused
from tools.fuzz.kernel_check import check_program, without_refused
from tools.fuzz.kernel_model import rounded
from tools.fuzz.search import KINDS, main, search, wrong_with
from tools.fuzz.wide_programs import WIDE, draw_wide

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", [0, 10, 20])
def test_random_problems(first):
    nothing_wrong("attention", first, 10)


@pytest.mark.parametrize("first", [0, 5])
def test_random_problems_whose_bias_has_a_gradient(first):
    nothing_wrong("biases", first, 5)


def test_random_bands():
    nothing_wrong("bands", 4, 4)


@pytest.mark.parametrize(
    ("kind", "first", "count"), [("forms", 0, 15), ("packs", 0, 4), ("decodes", 0, 4), ("ways", 0, 4), ("extras", 0, 12)]
)
def test_random_problems_of_other_forms(kind, first, count):
    nothing_wrong(kind, first, count)


@pytest.mark.parametrize("first", [0, 20])
def test_random_kernels(first):
    nothing_wrong("kernels", first, 20)


@pytest.mark.parametrize("first", [0, 220])
def test_random_kernels_of_more_instructions(first):
    nothing_wrong("wide", first, 20)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_random_problems(first):
    nothing_wrong("attention", first, 100)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(10000, 12000, 100))
def test_many_random_problems_whose_bias_has_a_gradient(first):
    nothing_wrong("biases", first, 100)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_many_random_bands(first):
    nothing_wrong("bands", first, 50)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "first"),
    [
        *(("forms", first) for first in range(0, 2000, 100)),
        *(("packs", first) for first in range(0, 400, 50)),
        *(("decodes", first) for first in range(0, 400, 50)),
        *(("ways", first) for first in range(0, 200, 25)),
        *(("extras", first) for first in range(0, 2000, 100)),
    ],
)
def test_many_random_problems_of_other_forms(kind, first):
    nothing_wrong(kind, first, {"forms": 100, "extras": 100, "ways": 25}.get(kind, 50))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 5000, 250))
def test_many_random_kernels_of_more_instructions(first):
    nothing_wrong("wide", first, 250)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 6000, 250))
def test_many_random_kernels(first):
    nothing_wrong("kernels", first, 250)


FOUND = {
    "a softcap that float32 cannot multiply a gradient by": {
        "seed": 1352, "front": "transformers", "batch_q": 3, "batch_kv": 3, "heads_kv": 3, "seqlen_q": 2, "seqlen_kv": 2,
        "head_dim": 25, "head_dim_v": 42, "gradients": True, "softcap": 3e38,
    },
    "the same under strict settings that refuse first": {
        "seed": 1161, "batch_q": 2, "batch_kv": 2, "heads_kv": 3, "group": 2, "seqlen_q": 1, "seqlen_kv": 64, "head_dim": 128,
        "head_dim_v": 128, "scale_as": "learned", "gradients": True, "softcap": 3e38, "strict": True,
    },
    "rows without keys in flash_decode, beside a sink of -inf": {
        "seed": 1000749, "ahead": 5, "q_offset": -36, "sink": "minus_inf", "kernel": "flash_decode", "strict": True,
    },
    "gradients under a scale that torch's fused backward cannot take": {
        "seed": 463368741199, "dtype": "bfloat16", "heads_kv": 2, "seqlen_q": 1, "seqlen_kv": 12, "head_dim": 5,
        "head_dim_v": 5, "scale": 1e20, "gradients": True, "kernel": "flash_decode",
    },
    "a bias of NaN on one key, which a comparison hid in the repair loop": {
        "seed": 463368752302, "dtype": "bfloat16", "seqlen_q": 33, "mask": "nan",
    },
    "lse of five probabilities that are rounded before they are summed": {
        "seed": 394828530945, "dtype": "bfloat16", "seqlen_q": 33, "scale": 0.0560968613043441, "lse": True,
    },
    "gradients below the least number of float16": {
        "seed": 394828533652, "dtype": "float16", "head_dim_v": 19, "mask": "float", "scale": -1e-29, "softcap": 3e38,
        "gradients": True,
    },
    "gradients of float16 that are sums of its least numbers": {
        "seed": 394828539293, "dtype": "float16", "seqlen_q": 2, "seqlen_kv": 1, "head_dim": 14, "values": "negative",
        "scale": 1.9389221397037626, "softcap": 43.16286519704836, "sink": "normal", "gradients": True,
    },
    "a shared bias whose gradient was summed in the order in which threads ended": {
        "seed": 10220, "batch_kv": 3, "group": 2, "seqlen_q": 128, "seqlen_kv": 33, "head_dim": 87, "head_dim_v": 87,
        "values": "wide", "mask": "float64", "mask_axes": (0, 0, 1), "mask_form": "short", "mask_learns": True, "lse": True,
        "gradients": True,
    },
    "a replay without the masks that the recorded run had overwritten": {
        "seed": 10264, "group": 4, "seqlen_q": 16, "seqlen_kv": 513, "head_dim_v": 128, "layout": "transposed",
        "values": "wide", "mask": "minus_inf", "mask_axes": (1, 1, 0), "mask_form": "one_key", "mask_learns": True,
        "gradients": True, "strict": True, "kernel": "flash_prefill", "chip": "trn1",
    },
    "a bias of float32's lowest value, which torch's sdpa was given in 16 bits": {
        "seed": 10625, "dtype": "float16", "seqlen_kv": 9, "mask": "lowest", "mask_form": "one_key", "mask_learns": True,
        "gradients": True, "kernel": "flash_const_max",
    },
    "lse of a score that is a sum of 64 products, term by term": {
        "seed": 253230108103, "dtype": "float16", "seqlen_q": 35, "head_dim": 64, "scale": 1.0, "lse": True,
    },
    "the same of 16 products and a bias": {
        "seed": 253230108023, "front": "merge", "dtype": "float16", "batch_q": 3, "batch_kv": 3, "group": 2, "seqlen_q": 187,
        "seqlen_kv": 187, "head_dim": 16, "head_dim_v": 41, "values": "wide", "mask": "float", "mask_axes": (1, 1, 1),
        "scale": -0.5, "parts": (),
    },
    "lse of lowest scores alone, whose gradient is left open": {
        "seed": 11125, "seqlen_kv": 1, "mask": "lowest", "mask_learns": True, "lse": True, "gradients": True, "frozen": "q",
    },
}  # fmt: skip
"""Problems that a search found something wrong with, made small."""


@pytest.mark.parametrize("case", FOUND.values(), ids=FOUND)
def test_what_a_search_once_found(case):
    assert not attention_check.check_problem(case)


def test_equal_seeds_give_equal_problems_and_every_field_is_known():
    for seed in range(200):
        assert repr(draw_problem(seed)) == repr(draw_problem(seed))
        assert draw_problem(seed).keys() == {"seed", *PLAIN}
        assert kernel_programs.draw_program(seed) == kernel_programs.draw_program(seed)
        assert draw_wide(seed) == draw_wide(seed)
    drawn = [draw_problem(seed) for seed in range(400)]
    assert 0 < sum(map(refused, drawn)) < 60
    others = []
    for draw in (draw_band, draw_form, draw_pack, draw_decode, draw_way, draw_extra):
        others += [draw(seed) for seed in range(100)]
        assert repr(draw(5)) == repr(draw(5))
        assert draw(5).keys() == {"seed", *PLAIN}
    for name, plain in PLAIN.items():
        assert any(case[name] != plain for case in [*drawn, *others]), name
    assert {case["way"] for case in others} == {None, *WAYS}
    assert {case["front"] for case in others} == {*attention_fronts.FRONTS}
    biased = [draw_learnt_bias(seed) for seed in range(400)]
    assert all(case["gradients"] and (case["mask_learns"] or case["position_bias"] == "learned") for case in biased)
    assert {case["mask_axes"] for case in biased if case["mask_learns"]} == set(itertools.product((0, 1), repeat=3))
    forms = {case["mask_form"] for case in biased if case["mask_learns"]}
    assert forms == {"plain", "short", "expanded", "one_key"}


def test_most_steps_are_taken_by_the_rules_and_every_instruction_is_reached():
    kept, reached, lost = 0, set(), 0
    for seed in range(100, 160):
        program, out = without_refused(kernel_programs.draw_program(seed))
        lost += len(out)
        for step in program["steps"] if program else []:
            inner = [step, *step.get("body", [])]
            reached.update(one["op"] for one in inner)
            kept += len(inner)
    assert lost < kept / 3
    assert reached >= {
        "loop",
        "sendrecv",
        "meet",
        "matmul",
        "transpose",
        "activation",
        "scan",
        "affine_select",
        "partition_reduce",
    }


def test_every_instruction_and_loop_of_more_kernels_is_reached():
    reached, lost, kept = set(), 0, 0
    for seed in range(400, 560):
        program, out = without_refused(draw_wide(seed))
        lost += len(out)
        for step in program["steps"] if program else []:
            kept += 1
            ranges = len(step.get("ranges", ()))
            reached.add(step.get("what") or (f"{step['kind']} {ranges}" if ranges else step["op"]))
    assert lost < kept / 2
    assert reached >= {*WIDE, "fori 1", "fori 2", "dynamic 1", "dynamic 2", "static 1", "static 2", "while 1"}


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


def test_bands_are_problems_that_flash_const_max_takes():
    drawn = [draw_band(seed) for seed in range(300)]
    assert {case["constants"] for case in drawn} == {None, "shortest", "shorter", "short", "long", "longest"}
    assert sum(case["seqlen_q"] % 2 for case in drawn) > 100
    assert sum(case["gradients"] for case in drawn) > 100


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


def test_simpler_problems_mean_what_they_say():
    """A simpler problem of a right one is right: no argument is left behind that its front does not take."""
    for kind in ("forms", "packs", "ways"):
        for seed in range(3):
            case = {**KINDS[kind].draw(seed), "way": None}
            for simpler in KINDS[kind].simpler(case)[:4]:
                assert not wrong_with(KINDS[kind], simpler), simpler


@pytest.mark.parametrize(
    "words",
    [
        ["--minutes", "nan"],
        ["--minutes", "junk"],
        ["--count", "0"],
        ["--first", "-5"],
        ["--folder", "Makefile"],
        ["--only", "junk"],
    ],
)
def test_a_search_of_nothing_is_refused(words, capsys):
    with pytest.raises(SystemExit) as end:
        main([*words, "--count", "1"] if words[0] != "--count" else words)
    assert end.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_kernel_that_the_simulator_breaks_on_is_found(tmp_path, monkeypatch):
    def broken(*given, **options):
        raise IndexError("here")

    monkeypatch.setattr(kernel_issue.nisa, "tensor_scalar", broken)
    found = search(["kernels"], 0, tmp_path, count=20, say=lambda line: None)
    assert found.files
    assert "IndexError" in found.files[0].read_text()


def test_the_model_rounds_to_nearest_even_and_saturates():
    values = np.array([0.5, 1.5, -2.5, 300, -1, np.nan, np.inf])
    assert rounded(values, np.uint8).tolist() == [0, 2, 0, 255, 0, 0, 255]
    assert rounded(values, np.int8).tolist() == [0, 2, -2, 127, -1, 0, 127]


def test_a_failure_that_does_not_happen_again_is_kept_as_it_was(tmp_path, monkeypatch):
    answers = iter(["out errs by 1"])
    kind = dataclasses.replace(KINDS["attention"], check=lambda case: next(answers, ""))
    monkeypatch.setitem(KINDS, "attention", kind)
    found = search(["attention"], 5, tmp_path, count=2, say=lambda line: None)
    assert (found.tried["attention"], len(found.files)) == (2, 1)
    text = found.files[0].read_text()
    assert text.startswith('"""Not each time: out errs by 1.')
    case = {}
    exec(text[text.index("CASE = ") : text.index("why = ")], {"inf": float("inf"), "nan": float("nan")}, case)
    assert {**PLAIN, **case["CASE"]} == draw_problem(5)


def test_a_replay_that_differs_is_found(monkeypatch):
    """The first value that a loop's tile has is kept from the recording."""
    program, _ = without_refused(kernel_programs.draw_program(3))
    assert not check_program(program)
    from nki_hf.sim.run.program import Program

    right = Program.__call__
    monkeypatch.setattr(Program, "__call__", lambda self, inputs: [each + 1 for each in right(self, inputs)])
    assert "replay" in check_program(program)


SERVED = pytest.mark.skipif(bool(serving_problems.unusable()), reason=serving_problems.unusable() or "-")


@SERVED
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 48, 8))
def test_many_random_requests_to_continuous_batching(first):
    nothing_wrong("serving", first, 8)


def test_random_requests_are_of_every_kind():
    drawn = [serving_problems.draw_serving(seed) for seed in range(100)]
    if drawn[0] is None:
        assert serving_problems.unusable()
        return
    assert {case["model"] for case in drawn} == {*serving_problems.MODELS}
    assert any(request[3] for case in drawn for request in case["requests"])
    too_long = [request for case in drawn for request in case["requests"] if request[1] > case["page"] * case["blocks"]]
    assert len(too_long) > 10
    simpler = serving_problems.simpler_servings({**drawn[0], "requests": [[0, 1, 1, False]] * 2, "sharing": True})
    assert len(simpler) == 3


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


def test_slots_of_a_cache_that_hold_no_key_are_nan():
    drawn = [case for seed in range(150) if (case := draw_pack(seed))["cache"] and case["cache"]["leftpad"]]
    padded = 0
    for case in drawn:
        extra = given_of(case).extra
        rows = extra["arguments"].get("cache_batch_idx", range(case["batch_q"]))
        for row, first in zip(rows, extra["arguments"]["cache_leftpad"].tolist(), strict=True):
            padded += first > 0
            assert all(bool(cache[int(row), :first].isnan().all()) for cache in extra["caches"])
    assert padded > 3
