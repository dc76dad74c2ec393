"""The page of shares of peak: figures worked out by hand, marks for measured and simulated, the command that made it."""

import re

import pytest

from tools import utilisation
from tools.page_block import block_of

TABLE = block_of(utilisation.PAGE, "utilisation")


def _rows():
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in TABLE.splitlines()[2:]]


@pytest.mark.parametrize(
    ("kernel", "where", "percent"),
    [
        ("v11", "trn1, 1 core", 26.0),  # 4 x 4096^2 x 128 in 360 us are 23.9 of 91.75 TFLOP/s
        ("v3", "trn1, 1 core", 3.0),  # 3,130 us
        ("sd_swapped_operands", "trn1, 1 core", 12.2),  # 4 x 4096^2 x 64 in 384 us
        ("attention_cte", "trn2, 1 core", 32.1),  # 80 x 4 x 128 x 4096 x 4097 / 2 in 13,628 us, of 78.6
    ],
)
def test_published_shares_are_what_they_are_by_hand(kernel, where, percent):
    row = next(row for row in utilisation.published() if (row.kernel, row.where) == (kernel, where))
    assert 100 * row.measured == pytest.approx(percent, abs=0.1)


def test_flash_attention_4_is_71_7_percent():
    assert 100 * utilisation.elsewhere()[-1].measured == pytest.approx(71.7, abs=0.05)


def test_every_rung_every_chip_and_the_public_kernels_are_in_the_table():
    kernels = {row[0] for row in _rows()}
    assert {"v3", "v4", "v5", "v6", "v7", "v8", "v11", "attention_cte", "attention_const_max", "FlashAttention-4"} <= kernels
    ours = [row for row in _rows() if row[0].startswith("flash_")]
    assert {row[1].split(",")[0] for row in ours} == {"trn1", "trn2", "trn3"}


def test_what_is_simulated_says_so():
    for row in _rows():
        assert "sim" not in row[2]
        assert not row[3] or row[3].endswith("(sim)")
        if row[0].startswith("flash_"):
            assert row[2] == ""
            assert row[4].endswith("(sim)") or (row[1].startswith("trn3") and row[4] == "not known")


def test_the_rows_that_need_no_run_are_as_the_command_writes_them():
    for line in utilisation.markdown([*utilisation.published(), *utilisation.elsewhere()]).splitlines():
        assert line in TABLE


def test_the_page_explains_12_5_percent_and_names_its_command():
    text = utilisation.PAGE.read_text()
    assert "23.8 TFLOP/s" in text
    assert "over 190" in text
    assert 100 * 23.8 / 190 == pytest.approx(12.5, abs=0.05)
    assert "python tools/utilisation.py --write" in text
    for name in re.findall(r"images/[\w.]+", text):
        assert (utilisation.DOCS / name).exists()


@pytest.mark.slow
def test_our_rows_are_as_the_command_writes_them():
    for line in utilisation.markdown(utilisation.ours()).splitlines():
        assert line in TABLE
