"""report, trace and bench on the command line: files that cannot be written, sizes that never end, memory that overflows."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nki_hf.chips import get_chip
from nki_hf.cli import app
from nki_hf.lang import nisa, nki, nl
from nki_hf.observers.report import ESTIMATED, LONGER, facts
from nki_hf.observers.working_set import working_sets
from nki_hf.sim import SimOptions, launch
from nki_hf.timing.schedule import schedule
from nki_hf.timing.spills import spilled
from nki_hf.tools.bench_rows import run
from nki_hf.tools.judging.reasons import reasons
from nki_hf.tools.latency import attention_us
from nki_hf.tools.lengths import MOST_INSTRUCTIONS, attention_instructions, subject_instructions
from nki_hf.tools.modelled import ModelRequest, stream, visible_flops
from nki_hf.tools.output_files import check_writable
from nki_hf.tools.pages.report_page import Side, report_page
from nki_hf.tools.report import side_of
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import attention_events, events_of

ROOT = Path(__file__).parents[2]
TRN1, TRN2 = get_chip("trn1"), get_chip("trn2")
SMALL = ("--kernel", "v7", "--seqlen", "512", "--chip", "trn1")


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(done, *words):
    """One line on standard error and exit code 2."""
    assert done.exit_code == 2, done.output
    assert (done.stdout, len(done.stderr.strip().splitlines())) == ("", 1)
    assert all(word in done.stderr for word in words), done.stderr


# ---- output files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verb", "suffix"), [("report", ".html"), ("trace", ".pftrace"), ("trace", ".svg"), ("trace", ".png")])
def test_a_file_that_cannot_be_opened_is_refused_before_the_simulation(verb, suffix, tmp_path, monkeypatch):
    name = {"report": "stream", "trace": "model"}[verb]
    monkeypatch.setattr(f"nki_hf.tools.{verb}.{name}", lambda *_, **__: pytest.fail("simulated"))
    link, loop, folder = (tmp_path / f"{name}{suffix}" for name in ("link", "loop", "folder"))
    link.symlink_to(tmp_path / "missing" / "file")
    loop.symlink_to(loop)
    folder.mkdir()
    (tmp_path / "file").write_text("")
    for path in (link, loop, folder, tmp_path / "no" / f"x{suffix}", tmp_path / "file" / f"x{suffix}", f"/proc/x{suffix}"):
        refused(invoke(verb, *SMALL, "-o", path), f"output={path} cannot be written (")


@pytest.mark.parametrize(("verb", "suffix"), [("report", ".html"), ("trace", ".pftrace"), ("trace", ".svg"), ("trace", ".png")])
def test_a_disk_that_is_full_is_one_line_after_the_simulation(verb, suffix, tmp_path):
    path = tmp_path / f"full{suffix}"
    path.symlink_to("/dev/full")
    done = invoke(verb, *SMALL, "-o", path)
    assert done.exit_code == 2
    assert f"output={path} cannot be written (No space left on device)" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_page_of_correlations_on_a_full_disk_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("nki_hf.tools.correlate.run", lambda *_, **__: [])
    monkeypatch.setattr("nki_hf.tools.correlate.fit", dict)
    monkeypatch.setattr("nki_hf.tools.correlate.store", lambda _: None)
    monkeypatch.setattr("nki_hf.tools.correlate.markdown", lambda *_: "page " * 10_000)
    path = tmp_path / "page.md"
    path.symlink_to("/dev/full")
    refused(invoke("correlate", "--write", path), "No space left on device")


@pytest.mark.parametrize("words", [("chip", "trn2"), ("report", *SMALL), ("report", *SMALL, "--json")], ids=" ".join)
def test_a_standard_output_that_is_full_is_one_line(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nki_hf", *words], stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
    assert (done.returncode, done.stderr.strip()) == (2, "output cannot be written (No space left on device).")


def test_looking_changes_nothing(tmp_path):
    kept, new, link = tmp_path / "kept", tmp_path / "new", tmp_path / "link"
    kept.write_text("old")
    link.symlink_to(new)
    for path in (kept, new, link):
        check_writable(path)
    assert kept.read_text() == "old"
    assert not new.exists()
    assert link.is_symlink()
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")  # would wait for a reader if it were opened


@pytest.mark.parametrize("name", ["noext", "page.txt", "page.pftrace"])
def test_a_page_ends_in_html(name, tmp_path):
    refused(invoke("report", *SMALL, "-o", tmp_path / name), ".html or .htm")


# ---- sizes ----------------------------------------------------------------------------------------------------------


HUGE = "9" * 20
LONG = [
    ("report", "--shape", "sq=20000000,skv=128"),
    ("report", "--shape", "sq=128,skv=2000000000"),
    ("report", "--shape", "b=2000000000,sq=1,skv=1"),
    ("report", "--shape", "hq=2000000000,sq=1,skv=1"),
    ("report", "--shape", "hq=2000000000,hkv=1,sq=1,skv=1,causal,window=2,sink,softcap=3"),
    ("report", "--seqlen", "200000"),
    ("trace", "--seqlen", "200000"),
    ("trace", "--shape", "sq=2147483647,skv=2147483647"),
    ("report", "--kernel", "v7", "--seqlen", "131072"),
    ("trace", "--kernel", "v3", "--seqlen", str(2**30)),
    ("report", "--kernel", "matmul_tiled", "--seqlen", "65536"),
    ("bench", "--shape", "sq=999999999,skv=128"),
    ("bench", "--shape", "sq=400000,skv=400000,hq=64", "--chip", "trn3"),
    ("bench", "--shape", "b=1000001,sq=512,skv=512"),
]


@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_what_would_not_end_is_refused_with_an_estimate(words):
    done = invoke(*words)
    refused(done, f"at most {MOST_INSTRUCTIONS:,} are traced and scheduled; give ")
    (estimate,) = re.findall(r"about ([\d,]+) instructions", done.stderr)
    assert int(estimate.replace(",", "")) > MOST_INSTRUCTIONS


@pytest.mark.parametrize("name", ["b", "hq", "hkv", "sq", "skv", "d", "dv", "window"])
@pytest.mark.parametrize("verb", ["report", "trace", "bench"])
def test_a_size_that_no_tensor_has_is_refused(verb, name):
    for value in (HUGE, "9" * 400, "9" * 5000):
        refused(invoke(verb, "--shape", f"{name}={value}"), "shape")
    assert invoke(verb, "--shape", f"{name}=0").exit_code == 2


@pytest.mark.parametrize("kernel", ["flash_prefill", "v7", "matmul_tiled"])
def test_a_length_that_no_tensor_has_is_refused(kernel):
    refused(invoke("report", "--kernel", kernel, "--seqlen", "9" * 400), "is not a size")


def test_layers_are_bounded():
    refused(invoke("bench", "--shape", "sq=1,skv=1", "--layers", "9" * 400), "layers")


SHAPES = [
    "sq=2048,skv=2048,causal",
    "sq=4096,skv=4096,causal,window=256",
    "hq=8,hkv=2,sq=1024,skv=2048",
    "b=4,sq=128,skv=4096",
    "hq=8,hkv=1,sq=1,skv=8192,causal",
    "sq=3000,skv=5000,d=256,dtype=float32,causal,sink",
    "sq=3000,skv=300,causal",
]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_estimate_for_flash_prefill_is_near(shape):
    problem = problem_of(shape)
    events = attention_events(problem, TRN2, kernel="flash_prefill")
    assert 0.75 < attention_instructions(problem, TRN2, "flash_prefill") / len(events) < 1.65


@pytest.mark.parametrize("shape", ["sq=2048,skv=1024", "hq=2,hkv=1,sq=500,skv=900,d=256,causal", "sq=600,dtype=float32"])
def test_the_backward_kernel_is_modelled_by_its_name(shape):
    asked = ModelRequest(kernel="flash_backward", shape=shape)
    problem, events = asked.problem, stream(asked)
    assert 0.75 < attention_instructions(problem, TRN2, "flash_backward") / len(events) < 1.65
    pairs = sum(hi - lo for lo, hi in (problem.mask.interval(row, problem.seqlen_kv) for row in range(problem.seqlen_q)))
    # Scores, dprobs, dq, dk and dv: the products of arXiv:2205.14135, algorithm 4.
    assert asked.useful_flops == 2 * 5 * problem.num_heads_q * pairs * problem.head_dim
    assert "attention backward" in asked.band


@pytest.mark.parametrize(("name", "size"), [("v3", 4096), ("v7", 4096), ("sd_baseline", 4096), ("matmul_blocked", 4096)])
def test_the_estimate_for_a_subject_is_near(name, size):
    assert subject_instructions(name, size, TRN1) == pytest.approx(len(events_of(name, size, TRN1)), rel=0.02)


def test_a_long_run_says_how_long(monkeypatch):
    monkeypatch.setattr("nki_hf.tools.modelled._LONG", 50)
    done = invoke("report", *SMALL)
    assert done.exit_code == 0
    assert re.fullmatch(r"v7 512: about \d+ instructions to trace and to schedule", done.stderr.strip())


@pytest.mark.parametrize("order", ["²", "٣", "0", "-1", "", "9" * 5000, "1.5"])
@pytest.mark.parametrize("verb", ["report", "trace"])
def test_an_order_is_program_or_a_number(verb, order, tmp_path):
    refused(invoke(verb, *SMALL, "--order", order, *(("-o", tmp_path / "x.svg") if verb == "trace" else ())), "is not known")


@pytest.mark.parametrize("shape", ["", " ", ",", " , ,"])
def test_a_shape_names_a_size(shape):
    refused(invoke("bench", "--shape", shape), "names no size")


def test_an_extrapolated_latency_schedules_less_than_the_whole(monkeypatch):
    monkeypatch.setattr("nki_hf.tools.latency._SETTLED", 3200)
    problem = problem_of("hq=60,sq=384,skv=640")
    whole = len(attention_events(problem, TRN2, kernel="flash_prefill"))
    assert 3200 < whole < 3200 * 2.25
    found = attention_us(problem, TRN2, budget=2_000, kernel="flash_prefill")
    assert found.extrapolated is not None
    assert found.instructions < whole
    monkeypatch.setattr("nki_hf.tools.latency._SETTLED", 1000)
    found = attention_us(problem, TRN2, window=None, budget=2_000, kernel="flash_prefill")
    assert found.extrapolated is not None
    assert found.instructions < whole


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_the_working_set_of_a_kernel_whose_scores_fill_psum():
    """v3 at 1,024 keys: scores of all 8 query tiles by 2 blocks, a bank of 512 float32 each; of the 8 banks that there are."""
    (psum,) = (item for item in working_sets(events_of("v3", 1024, TRN1), TRN1) if item.space == "psum")
    assert [(tile.nbytes, tile.live, tile.total) for tile in psum.tiles] == [(2048, 16, 2048 * 16)]
    assert (psum.high_water, psum.capacity) == (2 * 16384, 16384)


@pytest.mark.parametrize("name", ["v7", "v11", "sd_baseline"])
def test_the_tiles_add_up_to_the_high_water_mark(name):
    for item in working_sets(events_of(name, 1024, TRN1), TRN1):
        assert sum(tile.total for tile in item.tiles) == item.high_water


def test_the_report_lists_every_tile_of_the_working_set(tmp_path):
    done = invoke("report", "--kernel", "v11", "--seqlen", "512", "--chip", "trn1", "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    for item in working_sets(events_of("v11", 512, TRN1), TRN1):
        for tile in item.tiles:
            assert f'<td data-name="tile">{tile.name}</td>' in page
            row = rf"^{tile.name} +[\w.]+:{tile.line} +{tile.nbytes:,} +{tile.live} +{tile.total:,} "
            assert re.search(row, done.stdout, re.MULTILINE)
        assert f"{item.high_water:,} of {item.capacity:,}" in done.stdout
        assert f"{item.high_water:,} of {item.capacity:,}" in page
    assert "…" not in done.stdout  # no name is cut


@pytest.mark.parametrize("verb", ["report", "trace"])
def test_strict_mode_refuses_what_spills_and_says_which_tiles(verb, tmp_path):
    words = (
        verb,
        "--kernel",
        "v3",
        "--seqlen",
        "1024",
        "--chip",
        "trn1",
        "-o",
        tmp_path / ("x.html" if verb == "report" else "x.svg"),
    )
    refused(invoke(*words, "--overflow", "error"), "psum overflows", "16 x 2,048 B (v3_hbm_round_trips.py:")
    refused(invoke(*words, "--overflow", "maybe"), "overflow='maybe' is not known: it is spill or error")
    done = invoke(*words, "--overflow", "spill")
    assert done.exit_code == 0, done.output
    assert verb == "trace" or re.search(r"\b[1-9][\d,]* (PSUM tiles|matmuls|stores|loads) ", " ".join(done.stdout.split()))
    assert not re.search(r"\b0 (PSUM|matmuls|stores|loads)", done.stdout)  # what did not happen is not said


@nki.jit
def _one_tile(x, size):
    tile = nl.ndarray((128, size), nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0)
    return x


def _events(kernel, *args):
    options = SimOptions(chip=TRN1, values=False, checks=False)
    return launch(kernel, (np.zeros((1, 1), np.float32), *args), {}, options=options).events


def test_a_tile_larger_than_the_memory_is_said_to_be():
    with pytest.raises(MemoryError, match="alone takes 320,000 B of 196,608 B per partition"):
        spilled(_events(_one_tile, 80_000), TRN1)
    with pytest.raises(MemoryError, match="alone takes 320,000 B"):
        schedule(_events(_one_tile, 80_000), TRN1)


@pytest.mark.parametrize("verb", ["report", "trace"])
def test_memory_that_overflows_is_one_line(verb, monkeypatch, tmp_path):
    monkeypatch.setattr("nki_hf.tools.modelled.events_of", lambda *_: _events(_one_tile, 80_000))
    refused(invoke(verb, *SMALL, *(("-o", tmp_path / "x.svg") if verb == "trace" else ())), "alone takes 320,000 B")


# ---- figures --------------------------------------------------------------------------------------------------------


@nki.jit
def _nothing(x):
    return x


def test_an_empty_stream_has_facts_and_a_page():
    scheduled = schedule(_events(_nothing), TRN2)
    found = facts(scheduled)
    assert (found["instructions"], found["engines"], found["achieved"]) == (0, [], "no matmuls")
    page = report_page(Side(title="nothing", scheduled=scheduled, facts=found, reasons=reasons(scheduled, scheduled.events)))
    assert "the kernel runs no instruction, all of it is the launch" in page


def test_both_kinds_of_tflops_are_told_apart():
    """A causal square of 1,024: its visible keys are 1,024 * 1,025 / 2 of the scores of every block that is executed."""
    asked = ModelRequest(shape="sq=1024,skv=1024,causal,dtype=float16", chip="trn2")  # which one kernel takes
    events = attention_events(asked.problem, TRN2, kernel="flash_prefill")
    scheduled = schedule(events, TRN2)
    assert asked.useful_flops == visible_flops(asked.problem) == 4 * 128 * 1024 * 1025 // 2
    found = facts(scheduled, events, asked.useful_flops)
    assert found["visible_tflops"] == pytest.approx(asked.useful_flops / scheduled.total_ns / 1e3)
    assert found["executed_tflops"] > 1.1 * found["visible_tflops"]
    (row,) = run(asked.problem, ("trn2",), window=64, lnc=1)
    assert row["visible_tflops_simulated"] == pytest.approx(found["visible_tflops"])
    said = f"on visible keys {found['visible_tflops']:.1f} ("
    done = invoke("report", "--shape", asked.shape)
    assert said in " ".join(done.stdout.split())
    assert f"of score blocks included, {found['executed_tflops']:.1f} of" in " ".join(done.stdout.split())
    assert "TFLOP/s on visible keys" in " ".join(invoke("bench", "--shape", asked.shape, "--chip", "trn2").stdout.split())


@pytest.mark.parametrize("saved", [-1500.0, -0.01, 0.0, 2500.0])
def test_a_negative_gain_is_printed_as_it_is(saved, monkeypatch):
    monkeypatch.setattr(
        "nki_hf.tools.report.quick_gains",
        lambda plan: (dict.fromkeys(("tensor", "vector", "scalar", "sync", "dma"), saved), frozenset()),
    )
    side = side_of(ModelRequest(kernel="v7", seqlen=512, chip="trn1"), window=64)
    found = side.facts
    assert {row["gain_us"] for row in (*found["engines"], *found["dma"])} == {round(saved, 1) / 1e3}
    done, page = invoke("report", *SMALL), report_page(side)
    assert (LONGER[:40] in done.stdout) == (LONGER[:40] in page) == (saved < -1)
    assert "-0.0\n" not in done.stdout
    assert ">-0.0<" not in page
    assert (" -1.5\n" in done.stdout) == (">-1.5</td>" in page) == (saved < -1)


def test_estimated_gains_are_marked_wherever_they_are_shown(monkeypatch, tmp_path):
    done = invoke("report", *SMALL, "-o", str(tmp_path / "exact.html"))
    assert "~ is an estimate" not in done.stdout + (tmp_path / "exact.html").read_text()
    monkeypatch.setattr("nki_hf.observers.gains.ESTIMATED_FROM", 0)
    done, page = invoke("report", *SMALL, "-o", str(tmp_path / "page.html")), tmp_path / "page.html"
    rows = json.loads(invoke("report", *SMALL, "--json").stdout)
    marked = [row["gain_us"] for row in (*rows["engines"], *rows["dma"]) if row["gain_estimated"]]
    exact = [row["gain_us"] for row in (*rows["engines"], *rows["dma"]) if not row["gain_estimated"]]
    assert marked
    assert exact
    assert ESTIMATED in " ".join(done.stdout.split())
    assert ESTIMATED in page.read_text()
    for us in marked:
        assert f"~ {us:,.1f}\n" in done.stdout
        assert f">~ {us:,.1f}</td>" in page.read_text()
