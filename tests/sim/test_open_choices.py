"""Where public sources leave a choice, a kernel that depends on it is warned; outputs that are written twice are reported."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.faults import SecondWriteWarning, SimulatorWarning

DATA = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)


def warned(kernel, *arguments, lnc=None, **options):
    """The messages of the warnings of one launch."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        launch(kernel, arguments, options=SimOptions(**options), lnc=lnc)
    return [str(item.message) for item in caught if issubclass(item.category, SimulatorWarning)]


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize(
    ("view", "offset", "open_choice"),
    [
        (lambda t: t, 3, False),
        (lambda t: t[:, 4:12], None, False),
        (lambda t: t[:, 4:12], 0, True),
        (lambda t: t[:, 4:12], 3, True),
        (lambda t: t[:, 0:8], 3, False),
        (lambda t: t.slice(1, 4, 12), 3, True),
        (lambda t: t.select(1, 2) if t.ndim > 2 else t[:, 2:3], 1, True),
        (lambda t: t[:, 4:8].expand_dim(1), 0, True),
    ],
)
def test_an_offset_of_a_view_that_starts_inside_its_tensor_is_an_open_choice(view, offset, open_choice, foreign):
    def kernel(x):
        view(nl.load(x)).ap([[16, 8], [1, 2]], offset=offset)

    found = warned(kernel, DATA, third_party=foreign)
    assert len(found) == open_choice
    if open_choice:
        assert f"ap: offset={offset}" in found[0]
        assert __file__ in found[0]


def test_the_offset_counts_from_the_views_start():
    """The docstring's reading, which is the one computed."""

    def kernel(x):
        tile = nl.load(x)
        out = nl.ndarray((8, 2), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile[:, 4:12].ap([[16, 8], [1, 2]], offset=3))
        return out

    with pytest.warns(SimulatorWarning, match="offset=3"):
        np.testing.assert_array_equal(launch(kernel, (DATA,)).outputs[0], DATA[:, 7:9])


def _written(parts, *, dtype=nl.float32):
    """A kernel that writes an output `[8, 16]` in these column ranges."""

    def kernel(x):
        tile = nl.load(x)
        out = nl.ndarray((8, 16), dtype, buffer=nl.shared_hbm)
        for start, stop in parts:
            nisa.dma_copy(dst=out[:, start:stop], src=tile[:, start:stop])
        return out

    return kernel


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize(
    ("parts", "twice"),
    [
        ([(0, 16)], 0),
        ([(0, 8), (8, 16)], 0),
        ([(0, 8)], 0),
        ([(0, 16), (0, 16)], 128),
        ([(0, 9), (8, 16)], 8),
        ([(8, 16), (0, 8), (15, 16)], 8),
        ([(0, 4), (4, 8), (2, 6)], 32),
    ],
)
def test_an_output_element_that_is_written_twice_is_reported_and_not_refused(parts, twice, values):
    found = warned(_written(parts), DATA, values=values)
    assert len(found) == (twice > 0)
    if twice:
        assert f"{twice} elements of" in found[0]
        assert found[0].count(__file__) == 2  # both writes


def test_a_last_write_after_adding_up_in_the_output_is_reported_and_computed():
    def kernel(x):
        tile = nl.load(x)
        out = nl.ndarray((8, 16), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        again = nl.ndarray((8, 16), nl.float32)
        nisa.dma_copy(dst=again, src=out)
        nisa.tensor_tensor(dst=again, data1=again, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out, src=again)
        return out

    with pytest.warns(SecondWriteWarning, match="128 elements"):
        np.testing.assert_array_equal(launch(kernel, (DATA,)).outputs[0], 2 * DATA)


def test_the_two_cores_of_a_launch_may_not_write_one_element_unnoticed():
    def kernel(x, both):
        core = nl.program_id(0)
        out = nl.ndarray((8, 16), nl.float32, buffer=nl.shared_hbm)
        tile = nl.load(x)
        start = 0 if both else 8 * core
        nisa.dma_copy(dst=out[:, nl.ds(start, 8)], src=tile[:, nl.ds(start, 8)])
        return out

    assert warned(kernel, DATA, False, lnc=2) == []
    assert "64 elements" in warned(kernel, DATA, True, lnc=2)[0]


def test_an_input_written_in_place_counts_scratch_does_not():
    def in_place(x, times):
        tile = nl.load(x)
        for _ in range(times):
            nisa.dma_copy(dst=x, src=tile)

    def through_scratch(x):
        scratch = nl.ndarray((8, 16), nl.float32, buffer=nl.hbm)
        tile = nl.load(x)
        for _ in range(3):
            nisa.dma_copy(dst=scratch, src=tile)
        out = nl.ndarray((8, 16), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=scratch)
        return out

    assert warned(in_place, DATA.copy(), 1) == []
    assert "128 elements of x" in warned(in_place, DATA.copy(), 2)[0]
    assert warned(through_scratch, DATA) == []


@pytest.mark.filterwarnings("error::nki_hf.sim.faults.SecondWriteWarning")
@pytest.mark.parametrize("rows", [1, 33, 131])
def test_our_own_kernel_writes_every_element_once(rows, rng):
    q, k, v = (torch.from_numpy(rng.standard_normal((1, heads, rows, 40)).astype(np.float32)) for heads in (4, 2, 2))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    with nki_hf.using(strict=True):
        assert (nki_hf.attention(q, k, v, causal=True) - want).abs().max() < 1e-5


def test_an_output_that_is_also_written_as_bytes_is_compared_byte_by_byte():
    def kernel(x, start):
        out = nl.ndarray((8, 16), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out[:, 0:8], src=nl.load(x)[:, 0:8])
        raw = nl.zeros((8, 16), nl.uint8)
        nisa.dma_copy(dst=out.view(nl.uint8)[:, nl.ds(start, 16)], src=raw)
        return out

    assert warned(kernel, DATA, 32) == []
    assert "32 elements" in warned(kernel, DATA, 28)[0]  # 4 of 16 bytes of each row


TWICE = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nisa.dma_copy(dst=out, src=tile)
    nisa.dma_copy(dst=out[0:32], src=tile[0:32])
    return out


def reference(x):
    return x
"""


def test_verify_reports_a_second_write_and_passes(tmp_path):
    file = tmp_path / "twice.py"
    file.write_text(TWICE)
    arguments = ["verify", f"{file}:kernel", "--arg", "x=64x16:float32", "--reference", f"{file}:reference"]
    result = CliRunner().invoke(app, [*arguments, "--json", "-"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["passed"]
    (warning,) = report["warnings"]
    assert "512 elements of" in warning
    assert f"{file}:11" in warning
    assert "warning: dma_copy" in CliRunner().invoke(app, arguments).stdout
