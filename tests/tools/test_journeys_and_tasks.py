"""The published journeys (docs/journeys.md) and the bench of tasks (docs/bench_tasks.md)."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from page_block import block_of
from typer.testing import CliRunner

from nki_hf.chips import get_chip
from nki_hf.chips.measurements import MEASUREMENTS
from nki_hf.cli import app
from nki_hf.tasks import load_task, task_names
from nki_hf.timing.schedule import schedule
from nki_hf.tools.bench_tasks import KERNELS
from nki_hf.tools.error_bands import task_band
from nki_hf.tools.judging.named_kernels import named
from nki_hf.tools.subjects import events_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "journeys.md"
BENCH = ROOT / "docs" / "bench_tasks.md"


@pytest.fixture(scope="module")
def journeys():
    spec = importlib.util.spec_from_file_location("journeys", ROOT / "tools" / "journeys.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["journeys"] = module
    spec.loader.exec_module(module)
    return module


def table(name):
    """Cells of a block's table, by the header's words."""
    lines = [line for line in block_of(PAGE, name).splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


def us(cell):
    return float(cell.replace(",", ""))


def test_every_step_of_a_journey_stands_on_the_page_with_what_was_measured(journeys):
    for journey in journeys.JOURNEYS:
        rows = table(journey.name)
        assert [row["step"] for row in rows] == [step.removeprefix("walk_") for step, _ in journey.steps]
        for row, (step, _) in zip(rows, journey.steps, strict=True):
            for size in journey.sizes:
                known = journey.measured.get((step, size))
                assert row[f"{size:,}: measured trn1"] == ("" if known is None else f"{known:,.0f}")
        assert (PAGE.parent / "images" / f"journey_{journey.name}.svg").read_bytes().startswith(b"<?xml")
    measured = {(m.subject, m.size): m.us for m in MEASUREMENTS if m.chip == "trn1"}
    ladder = journeys.JOURNEYS[0]
    shown = {key: value for key, value in ladder.measured.items() if key[1] <= 4096}
    assert shown == {key: value for key, value in measured.items() if key[0] in dict(ladder.steps) and key[1] <= 4096}


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_the_page_has_what_the_model_says(chip):
    """The rungs that are quick, at 512 keys; `python tools/journeys.py --write` makes the page again."""
    rows = {row["step"]: row for row in table("ladder")}
    for rung in ("v4", "v5", "v6", "v7", "v8", "v11"):
        made = get_chip(chip)
        simulated = schedule(events_of(rung, 512, made), made).total_ns / 1e3
        assert us(_cell(rows[rung], 512, chip)) == pytest.approx(simulated, abs=0.051)


def _cell(row, size, chip):
    """Headers repeat from size to size: the page writes one block of columns per size."""
    return row[f"{size:,}: sim {chip}"]


@pytest.mark.parametrize("chip", ["trn1", "trn2", "trn3"])
def test_the_published_order_is_kept_in_four_fifths_of_the_neighbouring_pairs(journeys, chip):
    right = total = 0
    for journey in journeys.JOURNEYS:
        if chip not in journey.chips:
            continue
        rows = {row["step"]: row for row in table(journey.name)}
        times = {
            (step, chip, size): us(_cell(rows[step.removeprefix("walk_")], size, chip))
            for step, _ in journey.steps
            for size in journey.sizes
        }
        found = journeys.order(journey, times, chip)
        right += sum(row[-1] for row in found)
        total += len(found)
        for a, b, size, kept in found:
            assert kept or f"{a} to {b} at {size:,}" in block_of(PAGE, journey.name)
    assert right / total >= 0.8


def test_what_counts_as_the_published_order(journeys):
    assert journeys.kept(10, 9, (5, 4))
    assert not journeys.kept(10, 11, (5, 4))
    assert journeys.kept(10, 11, (4, 5))
    assert journeys.kept(10, 10.4, (5, 5))
    assert not journeys.kept(10, 11, (5, 5))
    assert journeys.kept(10, 10.04, None)
    assert not journeys.kept(10, 10.1, None)


# ---- the bench ----------------------------------------------------------------------------------------------------------


def test_every_task_has_a_baseline():
    assert set(KERNELS) == set(task_names())
    for name, pair in KERNELS.items():
        assert pair[0], name
        for kernel in pair:
            if kernel not in ("", "ours") and ":" not in kernel:
                named(kernel, name)


def test_the_fourteen_of_nkibench_have_their_published_shapes():
    shapes = {
        "adamw": (10_944, {"theta": (10_944, 2048)}),
        "silu": (4096, {"x": (4096, 7168)}),
        "rope": (64 * 4096, {"x": (128, 64 * 4096), "cos": (64, 64 * 4096)}),
        "mamba": (7168, {"delta": (256, 7168), "a": (256, 16), "b": (16, 7168)}),
        "matmul": (4096, {"a": (4096, 5120), "b": (5120, 12_288)}),
        "transpose_matmul": (4096, {"lhs": (2048, 4096), "rhs": (2048, 10_944)}),
        "lora": (4096, {"x": (4096, 5120), "w": (5120, 12_288), "a": (5120, 128)}),
        "bmm": (4096, {"lhs": (16, 4096, 64), "rhs": (16, 64, 4096)}),
        "bmm_softmax": (4096, {"lhs": (16, 4096, 64), "rhs": (16, 64, 4096)}),
        "rmsnorm_matmul": (4096, {"x": (4096, 1024), "weight": (1024, 2048)}),
        "add_rmsnorm_matmul": (4096, {"x": (4096, 1024), "weight": (1024, 2048)}),
        "matmul_add_rmsnorm": (4096, {"x": (4096, 2048), "weight": (2048, 2048)}),
        "swiglu": (4096, {"x": (4096, 1024), "gate": (1024, 3072), "down": (3072, 1024)}),
        "gqa_full": (4096, {"q": (16, 4096, 128), "k": (8, 4096, 128)}),
    }
    assert {name for name in task_names() if name.startswith("nkibench_")} == {f"nkibench_{name}" for name in shapes}
    for name, (size, arrays) in shapes.items():
        task = load_task(f"nkibench_{name}")
        assert tuple(task.at) == (size,)
        found = task.arrays(size)
        assert {key: found[key][0] for key in arrays} == arrays


def test_references_of_published_tasks_are_what_their_names_say():
    """Against formulas written down again, element by element or by other NumPy functions."""
    rng = np.random.default_rng(0)
    x, cos, sin = rng.standard_normal((4, 3)), *rng.standard_normal((2, 2, 3))
    pairs = (x[:2] + 1j * x[2:]) * (cos + 1j * sin)  # a rotary embedding is a product of complex numbers
    np.testing.assert_allclose(
        load_task("nkibench_rope").reference(x=x, cos=cos, sin=sin), np.concatenate([pairs.real, pairs.imag])
    )
    image = rng.standard_normal((6, 7))
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3)).max((2, 3))
    np.testing.assert_array_equal(load_task("autocomp_maxpool").reference(x=image), windows)
    delta, u, a, b, c = (rng.standard_normal(s) for s in ((2, 5), (2, 5), (2, 3), (3, 5), (3, 5)))
    out = np.zeros((2, 5))
    for channel in range(2):
        for s in range(3):
            state = 0.0
            for t in range(5):
                state = state * np.exp(delta[channel, t] * a[channel, s]) + delta[channel, t] * b[s, t] * u[channel, t]
                out[channel, t] += c[s, t] * state
    np.testing.assert_allclose(load_task("nkibench_mamba").reference(delta=delta, u=u, a=a, b=b, c=c), out)


def test_gradients_whose_rows_cancel_are_judged_by_what_they_sum():
    """With equal keys dq is exactly zero: only the size of its terms says what an error means."""
    task = load_task("attention_backward")
    rng = np.random.default_rng(1)
    q, v, dout = rng.standard_normal((3, 64, 128))
    k = np.broadcast_to(rng.standard_normal((1, 128)), (64, 128))
    dq = task.reference(q=q, k=k, v=v, dout=dout)[0]
    size = task.scale(q=q, k=k, v=v, dout=dout)[0]
    assert np.abs(dq).max() < 1e-12
    assert (size > 1e-4).all()
    k = rng.standard_normal((64, 128))
    gradients, sizes = task.reference(q=q, k=k, v=v, dout=dout), task.scale(q=q, k=k, v=v, dout=dout)
    for gradient, size in zip(gradients, sizes, strict=True):  # a sum is at most the square root of its terms' number larger
        assert (np.linalg.norm(gradient, axis=-1) < 12 * size).all()


@pytest.mark.parametrize("task", ["softmax", "transpose", "selective_scan", "attention_decode"])
def test_kernels_of_the_bench_pass_and_ours_is_faster(task):
    done = CliRunner().invoke(
        app, ["bench-tasks", "--small", "--tasks", task, "--chip", "trn2", "--processes", "1", "--cache", "off", "--json"]
    )
    assert done.exit_code == 0, done.stdout
    rows = {row["which"]: row for row in json.loads(done.stdout)}
    assert rows["best"]["band"] == rows["baseline"]["band"] == task_band(load_task(task), "trn2")
    assert rows["best"]["least_us"] < rows["best"]["us"] <= rows["baseline"]["us"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_kernel_of_the_bench_passes_at_a_small_size():
    done = CliRunner().invoke(app, ["bench-tasks", "--small", "--chip", "trn2", "--cache", "off", "--json"])
    assert done.exit_code == 0, [row for row in json.loads(done.stdout) if not row["passed"]]


def test_the_page_of_the_bench_has_every_task_and_chip():
    lines = [line for line in BENCH.read_text().splitlines() if re.match(r"\| [a-z]", line) and "| least us |" not in line]
    found = {tuple(cell.strip() for cell in line.strip("|").split("|"))[:3] for line in lines}
    wanted = {(name, f"{size:,}", chip) for name in KERNELS for size in load_task(name).at for chip in ("trn1", "trn2", "trn3")}
    assert wanted == found
    for line in lines:
        _, _, _, least, baseline, best, kernel, _ = (cell.strip() for cell in line.strip("|").split("|"))
        assert us(baseline) > us(least)
        assert kernel == "none yet" or us(best) <= us(baseline) * 1.001
    assert "Failed:" not in BENCH.read_text()
