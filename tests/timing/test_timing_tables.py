"""The tables of docs/timing.md: what a command wrote between markers is what the model gives now."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from nki_hf.chips import CHIPS  # noqa: E402
from nki_hf.tools.modelled import ModelRequest, model  # noqa: E402
from tools.page_block import TIMING, block_of, replace_block  # noqa: E402
from tools.timing_tables import CLIFF, SIZES, cliff_row, flash_row  # noqa: E402

AGAIN = "The kernel or the model changed; write the tables again: python tools/timing_tables.py --write"


@pytest.mark.parametrize("chip", CHIPS)
def test_the_flash_prefill_rows_of_4096_keys_are_what_the_model_gives(chip):
    assert flash_row(4096, chip) in block_of(TIMING, "flash_prefill").splitlines(), AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
def test_the_flash_prefill_rows_of_16384_keys_are_what_the_model_gives(chip):
    assert flash_row(16384, chip) in block_of(TIMING, "flash_prefill").splitlines(), AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("size", CLIFF)
def test_the_rows_of_the_cliff_are_what_the_model_gives(size):
    assert cliff_row(size) in block_of(TIMING, "cliff").splitlines(), AGAIN


def test_the_page_has_every_row_once():
    rows = [line.split(" | ") for line in block_of(TIMING, "flash_prefill").splitlines()[2:]]
    assert [(row[0].strip("| "), row[1]) for row in rows] == [(f"{size:,}", chip) for size in SIZES for chip in CHIPS]
    kernels = [line.split(" | ")[0] for line in block_of(TIMING, "public-kernels").splitlines()[2:]]
    assert len(kernels) == len(set(kernels)) >= 11
    for named in (
        "attention_cte",
        "nki_matmul_tiled",
        "nki_matmul_fully_optimized",
        "attention_tkg",
        "rmsnorm_quant",
        "mamba_v1",
        "mamba_v2",
    ):
        assert any(named in kernel for kernel in kernels), named


def _title(picture):
    """The `Title` of a PNG: a tEXt or iTXt chunk, whose text follows its last NUL."""
    data, at = picture.read_bytes(), 8
    while data[at + 4 : at + 8] != b"IEND":
        size = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        if kind in (b"tEXt", b"iTXt") and body.startswith(b"Title\0"):
            text = body.rpartition(b"\0")[2]
            return text.decode("latin-1" if kind == b"tEXt" else "utf-8")
        at += 12 + size
    raise AssertionError(f"{picture} has no title: draw it again with nki_hf trace.")


@pytest.mark.parametrize(("kernel", "chip"), [("flash_prefill", "trn2"), ("v11", "trn1")])
def test_the_pictures_show_what_the_model_gives(kernel, chip):
    """Each was drawn by `nki_hf trace --kernel ... --seqlen 1024 --chip ...`; its title holds the simulated latency."""
    asked = ModelRequest(kernel=kernel, seqlen=1024, chip=chip)
    plan = model(asked, window=64)
    title = _title(ROOT / "docs" / "images" / f"{kernel}_{chip}.png")
    again = f"Draw it again: nki_hf trace --kernel {kernel} --seqlen 1024 --chip {chip} -o docs/images/{kernel}_{chip}.png"
    assert title == f"{asked}: simulated, {chip}, window(64) order, {plan.total_ns / 1e3:,.1f} µs", again


def test_a_block_is_replaced_and_the_rest_of_the_page_kept(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin a -->\nold\n<!-- end a -->\nold\n<!-- begin b -->\nold\n<!-- end b -->\n")
    replace_block(page, "a", "new\nlines")
    assert page.read_text() == (
        "before\n<!-- begin a -->\nnew\nlines\n<!-- end a -->\nold\n<!-- begin b -->\nold\n<!-- end b -->\n"
    )
    assert block_of(page, "b") == "old"
    with pytest.raises(ValueError, match="no block 'c'"):
        replace_block(page, "c", "x")
    page.write_text("<!-- begin a -->\nnever closed\n")
    with pytest.raises(ValueError, match="no block 'a'"):
        block_of(page, "a")
