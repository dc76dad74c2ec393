"""The benchmark's page, picture, published figures and sweep: complete, offline, labelled."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import bench_results
import pytest
import torch
from headless import Browser, chromium
from typer.testing import CliRunner

from nki_hf.chips import get_chip
from nki_hf.tools.model_bench.layer_share import linear_work, shares
from nki_hf.tools.model_bench.options import BenchOptions, WrongUse
from nki_hf.tools.model_bench.page import _words, page, write_page
from nki_hf.tools.model_bench.published import published_for, published_lines
from nki_hf.tools.model_bench.record import BenchResult
from nki_hf.tools.model_bench.report import show
from nki_hf.tools.model_bench.sweep import Point, lengths_of, model_problem, sweep, write_sweep
from nki_hf.tools.screen import Screen
from nki_hf.tools.shape import problem_of

SCRIPT = Path(__file__).parents[2] / "examples" / "qwen3_bench.py"
TIMES = (1.0, 1.1, 1.2, 1.3, 1.4)


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("qwen3_bench_pages", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("layers", "words"), [(1, ("1 layer runs ", "ms, 1 layer (sim)")), (2, ("2 layers run ", "ms, 2 layers (sim)"))]
)
def test_one_layer_is_one(layers, words):
    made = bench_results.result([bench_results.row("nki", TIMES)])
    text = page(replace(made, modelled=(replace(made.modelled[0], layers=layers),))).decode()
    for each in words:
        assert each in text


@pytest.fixture
def run(module):
    return lambda *words: CliRunner().invoke(module.app, [str(word) for word in words])


def _result(**changes):
    rows = changes.pop("rows", (bench_results.row("eager", TIMES), bench_results.row("nki", TIMES)))
    return bench_results.result(rows, **changes)


@pytest.fixture(scope="module")
def html():
    """The page of a run of the preset's sizes, whose record holds hostile text."""
    header = {**bench_results.HEADER, "kernels": '"><img src=x>'}
    return page(_result(published=True, verdict="<script>alert(1)</script>", header=header)).decode()


def _text(html):
    return re.sub(r"<[^>]*>", " ", re.sub(r"data:[^\"]*", "", html))


def test_a_run_leaves_page_and_picture_beside_its_result(run, tiny_folder, tmp_path):
    json = tmp_path / "out" / "r.json"
    words = ("--model", tiny_folder, "--layers", 2, "--seqlen", 64, "--iters", 1, "--device", "cpu", "--attn", "eager,sdpa",
             "--cache-dir", tmp_path / "cache", "--json", json)  # fmt: skip
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert f"page:    {json.with_suffix('.html')}" in done.output
    assert json.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "PASS" in _text(json.with_suffix(".html").read_text())
    read = BenchResult.read(json)
    assert {row.attn for row in read.rows} == {"eager", "sdpa"}
    json.with_suffix(".html").unlink()
    assert run(*words, "--no-page").exit_code == 0
    assert not json.with_suffix(".html").exists()


def test_the_page_opens_offline_in_both_themes(html):
    assert not re.search(r"""(?:src|href|srcset)=["'](?!data:)""", html)
    assert "prefers-color-scheme:dark" in html  # and a button
    assert 'class="chart light"' in html
    assert 'class="chart dark"' in html
    assert html.count("data:image/svg+xml") == 2


@pytest.mark.skipif(chromium() is None, reason="no Chromium is installed")
def test_a_browser_shows_one_chart_of_the_two_and_complains_of_nothing(html, tmp_path):
    (tmp_path / "r.html").write_text(html)
    shown = "[...document.querySelectorAll('img.chart')].filter(i => i.offsetWidth && i.naturalWidth).map(i => i.className)"
    with Browser() as browser:
        for width in (1280, 390):
            for dark in (False, True):
                browser.open(tmp_path / "r.html", width=width, dark=dark, ready="document.readyState === 'complete'")
                assert [*browser.complaints, *browser.overflowing()] == []
                assert browser.value(shown) == [f"chart {'dark' if dark else 'light'}"]
                # Its smallest words are of 8 points, 96 / 72 pixels each where the picture has its own size.
                scale = browser.value(
                    "Math.max(...[...document.querySelectorAll('img.chart')].map(i => i.width / i.naturalWidth))"
                )
                assert 8 * 96 / 72 * scale >= 8


def test_the_page_labels_every_modelled_figure(html):
    text = _text(html)
    table = text[text.index("simulated, no figure here was measured") : text.index("machine and versions")]
    for words in (
        "µs a layer (sim)",
        "prompts/s, attention alone (sim)",
        "share of the layer, at most (sim)",
        "attention, trn2: -",
        "attention, trn3: no measured rows",
    ):
        assert words in table, words
    assert "a machine" in text


def test_hostile_text_of_a_record_is_shown_not_run(html):
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "<img src=x>" not in html


def test_what_could_not_run_still_has_a_page(tmp_path):
    skipped = bench_results.row("eager", TIMES, timing=None, accuracy=None, skipped="its scores need 64 GiB")
    nan = bench_results.row("sdpa", TIMES)
    nan = replace(nan, accuracy=replace(nan.accuracy, mse=float("nan"), rms_ratio=float("nan"), passed=False, remark="NaN"))
    result = _result(rows=(skipped, nan), modelled=(), passed=False, verdict="NaN")
    write_page(result, tmp_path / "r.json")
    assert "its scores need 64 GiB" in (tmp_path / "r.html").read_text()
    result.write(tmp_path / "r.json")
    read = BenchResult.read(tmp_path / "r.json")
    assert read.rows[1].accuracy.rms_ratio != read.rows[1].accuracy.rms_ratio  # NaN comes back
    assert read.rows[0].timing is None


def test_a_result_may_not_be_named_as_its_own_page(run, tmp_path):
    done = run("--json", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "would be overwritten by its own page" in done.output


# ---- published figures ----------------------------------------------------------------------------------------------


def test_aim414_has_its_published_figures_labelled(html):
    options = BenchOptions(layers=4, seqlen=16384, batch_size=1)
    assert [(row.what, row.prompts_per_s) for row in published_for(options)] == [("eager", 0.35), ("nki", 2.99)]
    result = _result(published=True)
    eager, nki, one_core = published_lines(result.published, result.modelled)
    assert eager.startswith("published: eager 0.35 prompts/s (trn2.3xlarge, one core")
    assert nki.startswith("published: nki 2.99 prompts/s")
    # 4 layers of 2,000 us; a prompt at 2.99 a second takes 334 ms, at 0.35 2,857 ms
    assert one_core.startswith("simulated: one trn2 core spends 8.0 ms on attention (flash_const_max, 4 layers) of the 334 ms")
    assert "with eager takes 2,857 ms; error on measured rows: attention, trn2" in one_core
    assert one_core in _text(html)


def test_published_figures_are_printed_beside_the_run(capsys):
    show(_result(published=True), Screen(), json=Path("r.json"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "published: eager 0.35 prompts/s" in printed
    assert "published: nki 2.99 prompts/s" in printed
    assert "simulated: one trn2 core spends 8.0 ms" in printed


@pytest.mark.parametrize(
    "changes",
    [
        {"seqlen": 8192},
        {"layers": 5},
        {"batch_size": 2},
        {"padded": True},
        {"window": 64},
        {"dtype": "fp32"},
        {"model": "other"},
    ],
)
def test_other_sizes_have_no_published_figures(changes):
    assert published_for(BenchOptions(**{"layers": 4, "seqlen": 16384} | changes)) == ()


# ---- share of attention ---------------------------------------------------------------------------------------------


def test_the_matrix_products_of_a_layer_are_counted(tiny_folder):
    """tiny: hidden 64, 4 query and 2 kv heads of 32, intermediate 96: q, o 64 x 128, k, v 64 x 64, three of 64 x 96."""
    from transformers import AutoModel

    work = linear_work(AutoModel.from_pretrained(tiny_folder, dtype=torch.bfloat16))
    assert work.weights == 2 * 64 * 128 + 2 * 64 * 64 + 3 * 64 * 96
    assert work.nbytes == 2 * work.weights
    chip = get_chip("trn2")
    assert work.floor_us(10**6, chip, 2) == pytest.approx(2 * work.weights * 1e6 / (2 * 78.6e12 * 0.95) * 1e6)
    row = {"cores": 2, "nki_us_simulated": 300.0, "eager_like_us_simulated": 3000.0}
    found = shares(row, work, 10**6, chip)
    floor = found["linear_floor_us_simulated"]
    assert found["nki_share_simulated"] == pytest.approx(300 / (300 + floor))


def test_experts_have_no_known_share():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.projection = torch.nn.Linear(4, 4)
            self.experts = torch.nn.Parameter(torch.zeros(2, 4, 4))

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([Layer()])
    assert linear_work(model) is None
    assert linear_work(torch.nn.Linear(2, 2)) is None


# ---- sweep ----------------------------------------------------------------------------------------------------------


def test_a_sweep_doubles_the_length():
    assert lengths_of("seqlen=512..16384") == (512, 1024, 2048, 4096, 8192, 16384)
    assert lengths_of("seqlen=300..1000") == (300, 600)


@pytest.mark.parametrize("text", ["", "seqlen", "seqlen=512", "layers=1..2", "seqlen=64..512", "seqlen=9..8", "seqlen=1..1e9"])
def test_a_sweep_that_means_nothing_is_refused(text, run):
    with pytest.raises(WrongUse, match="sweep="):
        lengths_of(text)
    if text:
        assert run("--sweep", text).exit_code == 2


@pytest.mark.parametrize(("device", "lengths"), [("cpu", []), ("neuron", [128, 256])])
def test_a_sweep_runs_the_model_at_each_length_on_a_device_only(module, monkeypatch, tmp_path, device, lengths):
    ran = []

    def benchmark(options, *_, **__):
        ran.append((options.seqlen, options.json.name))
        return options.seqlen < 256

    monkeypatch.setattr("nki_hf.tools.model_bench.worlds.choose_device", lambda _: device)
    monkeypatch.setattr("nki_hf.tools.model_bench.sweep.sweep", lambda *_, **__: [])
    monkeypatch.setattr("nki_hf.tools.model_bench.sweep.write_sweep", lambda points, path, command: (path, command))
    monkeypatch.setattr(module, "benchmark", benchmark)
    done = CliRunner().invoke(module.app, ["--sweep", "seqlen=128..256", "--json", str(tmp_path / "r.json")])
    assert done.exit_code == (1 if lengths else 0), done.output  # a run that failed is said
    assert ran == [(seqlen, f"r_{seqlen}.json") for seqlen in lengths]
    assert "--sweep seqlen=128..256 --json" in done.output


def test_the_sweep_holds_published_rows_and_ours(tmp_path):
    class Config:
        num_attention_heads, num_key_value_heads, head_dim = 2, 1, 64

    options = BenchOptions(window=256)
    problem = model_problem(Config, 512, options)
    assert (problem.num_heads_q, problem.num_heads_kv, problem.head_dim) == (2, 1, 64)
    assert (problem.mask.ahead, problem.mask.window) == (1, 256)
    points = sweep((512,), lambda seqlen: model_problem(Config, seqlen, BenchOptions()), step=lambda _: None)
    published = {p.line: p.us for p in points if p.kind == "published"}
    assert published == {"v3": 57, "v4": 25, "v5": 23, "v6": 23, "v7": 19, "v8": 20, "v11": 19}  # as published
    v7 = next(p for p in points if p.line == "v7" and p.kind == "published")
    assert v7.tflops == pytest.approx(4 * 512 * 512 * 128 / 19e-6 / 1e12)
    assert {p.chip for p in points if p.line.startswith("flash_")} == {"trn1", "trn2", "trn3"}
    html, png = write_sweep(points, tmp_path / "s.html", "the command")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = _text(html.read_text())
    assert "Lines are SIMULATED, dots published" in text
    assert "attention, trn3: no measured rows" in text


def test_the_table_of_a_sweep_has_the_lengths_of_a_line_together(tmp_path):
    """Points come as they are stored, where the longest of a rung lie apart."""
    points = [
        Point(line=line, chip="trn1", kind=kind, seqlen=seqlen, us=1.0, tflops=1.0, of_peak=0.01)
        for line, kind, seqlen in (
            ("v3", "published", 512),
            ("v3", "simulated", 512),
            ("v4", "published", 512),
            ("v3", "published", 8192),
            ("v4", "published", 256),
        )
    ]
    html, _ = write_sweep(points, tmp_path / "s.html", "the command")
    rows = re.findall(r"<td[^>]*>(v\d)</td><td[^>]*>trn1</td><td[^>]*>(\w+)</td><td[^>]*>([\d,]+)</td>", html.read_text())
    assert rows == [
        ("v3", "published", "512"),
        ("v3", "simulated", "512"),
        ("v3", "published", "8,192"),
        ("v4", "published", "256"),
        ("v4", "published", "512"),
    ]


def test_the_page_says_what_a_layer_runs_in_words():
    problem = problem_of("b=2,hq=16,hkv=8,sq=100,skv=2048,window=64")
    assert _words(str(problem)) == (
        "2 x 16 query heads on 8 key heads, 100 queries, 2,048 keys, window 64, head_dim 128, bfloat16"
    )
    assert "window" not in _words(str(problem_of("sq=128,causal")))
    assert _words("something else") == "something else"
