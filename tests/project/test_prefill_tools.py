"""The two tools that write the prefill tables run, on a small call, and count what they say they count."""

import pytest

from nki_hf.chips import get_chip
from nki_hf.tools.subjects import attention_events
from tools import prefill_sensitivity, prefill_targets
from tools.prefill_targets import Case, _problem, blocks_of, floor_us, row_of, visible_of


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_a_row_of_the_table_of_targets(chip):
    row = row_of(Case(name="1K causal", problem=_problem(1024, ahead=1), most_us=1000), get_chip(chip), None)
    found = dict(zip(prefill_targets.HEADER, row, strict=True))
    assert (found["chip"], found["target"], found["attention_cte program"]) == (chip, "1,000", "-")
    assert float(found["µs program"]) < float(found["flash_prefill program"])


def test_floors_follow_from_the_sizes():
    causal, whole = _problem(8192, ahead=1), _problem(8192)
    assert (visible_of(causal), visible_of(whole)) == (8192 * 8193 // 2, 8192 * 8192)
    assert (blocks_of(whole), blocks_of(_problem(1024, ahead=1))) == (64 * 16, 4 + 4 * 2)
    us, engine = floor_us(whole, get_chip("trn1"))  # 2 products of 128 columns a tile of 128 x 128, at 2.8 GHz
    assert (us, engine) == (pytest.approx(64 * 64 * 256 / 2.8e3), "Tensor")
    # Of a column of 128 exps the share x is copied first: (0.974 - 0.141 x) ns of Scalar, 1.042 x ns of Vector, equal at 0.82.
    us, engine = floor_us(whole, get_chip("trn2"))
    assert (us, engine) == (pytest.approx(64 * 64 * 128 * 0.858 / 1e3, rel=2e-3), "Scalar")


def test_what_is_switched_changes_the_times_in_its_direction():
    chip = get_chip("trn2")
    events = attention_events(_problem(512, ahead=1), chip, kernel="flash_const_max")
    rows = [[float(us) for us in row] for row in prefill_sensitivity.times_of(events, chip)]
    plain, exp, short, both = rows
    assert exp[0] < plain[0] < short[0]
    assert exp[0] < both[0] <= short[0]
    assert prefill_sensitivity.times_of(None, chip) == [("-", "-")] * 4
