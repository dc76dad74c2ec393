"""The chip tables: every number named, sourced and graded; chips agree on which numbers exist."""

import pytest
from typer.testing import CliRunner

from nki_hf.chips import CHIPS, Param, get_chip
from nki_hf.chips.common import COMMON
from nki_hf.chips.param import CONFIDENCES
from nki_hf.cli import app
from nki_hf.settings import CHIP_NAMES
from nki_hf.sim.options import target_chip


def test_every_chip_has_the_same_numbers():
    names = {name: set(chip.params) for name, chip in CHIPS.items()}
    assert all(found == names["trn1"] for found in names.values())


def test_every_chip_can_be_chosen_by_setting_and_by_platform_target():
    assert set(CHIP_NAMES) == set(CHIPS)
    assert all(target_chip(name) is chip for name, chip in CHIPS.items())


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


def test_what_was_chosen_after_seeing_calibration_rows_is_graded_assumed():
    trn1, trn2 = get_chip("trn1").params, get_chip("trn2").params
    chosen = [
        "vector_latency_ns",
        "scalar_copy_psum_latency_ns",
        "scalar_copy_sbuf_latency_ns",
        "scalar_table_latency_ns",
        "dma_end_ns",
        "dma_small_packet_bytes",
        "dma_small_packet_fraction",
        "vector_overhead_cycles",
    ]
    assert {trn1[name].confidence for name in chosen} == {"assumed"}
    assert trn2["tensor_fp32_pass_overhead_cycles"].confidence == "assumed"


def test_trn3_calls_documented_only_what_its_own_or_common_pages_say():
    for key, param in get_chip("trn3"):
        if param.confidence == "documented" and key not in COMMON:
            assert "trainium3" in param.source or "dma-bandwidth-guide" in param.source, key


@pytest.mark.parametrize("name", CHIPS)
def test_the_command_is_readable_at_80_columns_with_every_number_whole(name):
    lines = CliRunner().invoke(app, ["chip", name]).stdout.splitlines()
    assert max(map(len, lines)) <= 100
    for key, param in get_chip(name):
        assert f"{key} = {param.value:,g} {param.unit} ({param.confidence})" in lines


def test_a_param_without_source_is_refused():
    with pytest.raises(ValueError, match="lacks a unit or a source"):
        Param(1, "ns", "", "documented")
