"""The chip tables: every number named, sourced and graded; chips agree on which numbers exist."""

import pytest

from nki_hf.chips import CHIPS, Param, get_chip
from nki_hf.chips.param import CONFIDENCES


def test_every_chip_has_the_same_numbers():
    names = {name: set(chip.params) for name, chip in CHIPS.items()}
    assert names["trn1"] == names["trn2"] == names["trn3"]


@pytest.mark.parametrize("name", CHIPS)
def test_every_number_has_unit_source_and_confidence(name):
    for key, param in get_chip(name):
        assert param.unit, key
        assert len(param.source) >= 10, key
        assert param.confidence in CONFIDENCES, key


@pytest.mark.parametrize("name", CHIPS)
def test_the_tensor_peak_is_the_array_times_its_clock(name):
    chip = get_chip(name)
    assert chip.tensor_peak_tflops == pytest.approx(128 * 128 * 2 * chip.tensor_ghz / 1e3, rel=0.005)


@pytest.mark.parametrize("name", CHIPS)
def test_psum_is_its_banks(name):
    chip = get_chip(name)
    assert chip.psum_partition_bytes == chip.psum_banks * chip.psum_bank_bytes


def test_trn3_claims_no_measurement():
    assert not [key for key, param in get_chip("trn3") if param.confidence == "measured"]


def test_a_param_without_source_is_refused():
    with pytest.raises(ValueError, match="lacks a unit or a source"):
        Param(1, "ns", "", "documented")
