"""What the searches draw: equal seeds, every field, instruction and form, and what a simpler problem means."""

import itertools

from tools.fuzz import attention_fronts, kernel_programs, serving_problems
from tools.fuzz.attention_extras import draw_extra
from tools.fuzz.attention_forms import WAYS, draw_decode, draw_form, draw_way
from tools.fuzz.attention_given import given_of
from tools.fuzz.attention_packs import draw_pack
from tools.fuzz.attention_problems import PLAIN, draw_band, draw_learnt_bias, draw_problem, refused
from tools.fuzz.kernel_check import without_refused
from tools.fuzz.search import KINDS, wrong_with
from tools.fuzz.wide_programs import WIDE, draw_wide


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


def test_bands_are_problems_that_flash_const_max_takes():
    drawn = [draw_band(seed) for seed in range(300)]
    assert {case["constants"] for case in drawn} == {None, "shortest", "shorter", "short", "long", "longest"}
    assert sum(case["seqlen_q"] % 2 for case in drawn) > 100
    assert sum(case["gradients"] for case in drawn) > 100


def test_simpler_problems_mean_what_they_say():
    """A simpler problem of a right one is right: no argument is left behind that its front does not take."""
    for kind in ("forms", "packs", "ways"):
        for seed in range(3):
            case = {**KINDS[kind].draw(seed), "way": None}
            for simpler in KINDS[kind].simpler(case)[:4]:
                assert not wrong_with(KINDS[kind], simpler), simpler


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
