"""examples/qwen3_bench.py as a user runs it: flags, exit codes, one-line errors, files, Ctrl-C."""

import importlib.util
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from nki_hf.tools.model_bench.options import BenchOptions

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "qwen3_bench.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("qwen3_bench", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bench(script):
    def invoke(*words):
        return CliRunner().invoke(script.app, [str(word) for word in words], catch_exceptions=False)

    return invoke


@pytest.fixture
def small(tiny_folder, tmp_path):
    """Flags of a run that takes a second; the tests add what they are about."""
    files = ("--cache-dir", tmp_path / "cache", "--json", tmp_path / "out" / "r.json")
    return ("--model", tiny_folder, "--layers", 2, "--seqlen", 96, "--iters", 1, "--device", "cpu", *files)


def test_a_run_passes_with_0_and_says_everything(bench, small, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = bench(*small, "--attn", "eager,sdpa", "--decode-steps", 2)
    assert done.exit_code == 0, done.output
    for text in ("torch 2", "nki kernels", "simulator", "wall clock of this CPU", "prompts", "cosine", "PASS: ", "r.json"):
        assert text in done.output
    assert "…" not in done.output  # the tables fit 80 columns
    assert json.loads((tmp_path / "out" / "r.json").read_text())["passed"] is True


def test_the_printed_command_repeats_the_run(bench, small, tmp_path):
    done = bench(*small, "--attn", "sdpa", "--padded", "--batch-size", 2, "--seed", 3, "--dtype", "fp32")
    (line,) = (line for line in done.output.splitlines() if line.startswith("repeat:"))
    words = shlex.split(line.removeprefix("repeat:"))
    assert [str(Path(words[0]).absolute()), words[1]] == [sys.executable, "examples/qwen3_bench.py"]
    first = json.loads((tmp_path / "out" / "r.json").read_text())
    assert bench(*words[2:]).exit_code == 0
    again = json.loads((tmp_path / "out" / "r.json").read_text())
    assert again["command"] == first["command"]
    assert again["rows"][0]["accuracy"] == first["rows"][0]["accuracy"]
    assert again["reference"]["from_cache"] == "yes"


@pytest.mark.parametrize(("below", "shown"), [(True, ".venv/bin/python"), (False, "/opt/venv/bin/python")])
def test_the_interpreter_is_the_one_that_ran_as_one_types_it(monkeypatch, below, shown):
    from nki_hf.tools.model_bench.header import interpreter as _interpreter

    monkeypatch.setattr(sys, "executable", str(Path.cwd() / ".venv/bin/python") if below else shown)
    assert _interpreter() == shown


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_more_layers_than_the_offline_model_has_are_refused_in_one_line(bench, monkeypatch, script, words):
    done = bench("--layers", 29, *words)
    assert done.exit_code == 2
    assert done.output.strip() == "layers=29 is more than qwen3-0.6b-random has: it has 28; lower --layers."
    monkeypatch.setattr(script, "benchmark", lambda *_, **__: True)
    assert bench("--layers", 28).exit_code == 0


def test_one_layer_is_singular(bench, small):
    assert ", 1 layer, " in bench(*small, "--layers", 1, "--attn", "sdpa").output
    assert ", 2 layers, " in bench(*small, "--attn", "sdpa").output


def test_a_failed_check_exits_with_1(bench, small, monkeypatch):
    monkeypatch.setattr("nki_hf.tools.model_bench.accuracy.MAX_RMS_RATIO", 0.5)
    done = bench(*small, "--attn", "sdpa")
    assert done.exit_code == 1
    assert "FAIL: sdpa: RMS error is" in done.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--attn", "flash"), "attn='flash' is not known: attn is any of eager, sdpa, nki."),
        (("--attn", "sdpa,sdpa"), "name each attention once"),
        (("--attn", ""), "name each attention once, at least one"),
        (("--dtype", "int8"), "dtype='int8' is not known: dtype is one of bf16, fp16, fp32."),
        (("--device", "gpu"), "device='gpu' is not known"),
        (("--device", "neuron"), "device='neuron' is not on this machine"),
        (("--device", "xla"), "device='xla' is not on this machine"),
        (("--preset", "big"), "preset='big' is not known: preset is one of aim414."),
        (("--iters", "0"), "iters=0 cannot be run: iters must be 1 or more."),
        (("--seqlen", "8", "--decode-steps", "8"), "decode_steps=8 leaves no prompt"),
        (("--model", "/no/such/folder"), "model='/no/such/folder' is no folder"),
    ],
)
def test_wrong_use_is_one_line_and_exits_with_2(bench, words, text):
    done = bench(*words)
    assert done.exit_code == 2
    assert text in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_result_file_that_cannot_be_written_is_said_before_the_run(bench, small, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "r.json"):
        done = bench(*small, "--json", path)
        assert done.exit_code == 2
        assert "cannot be written" in done.output
        assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_two_benchmarks_share_one_cache_folder(small, tmp_path):
    words = [str(word) for word in (*small, "--attn", "sdpa")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    processes = [
        subprocess.Popen([sys.executable, str(SCRIPT), *words, "--json", str(tmp_path / f"{n}.json")], env=environment)
        for n in range(2)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    first, second = (json.loads((tmp_path / f"{n}.json").read_text()) for n in range(2))
    assert first["baseline_rms"] == second["baseline_rms"]
    assert len(list((tmp_path / "cache").glob("*.ref"))) == 2


def test_the_preset_has_the_sessions_sizes_and_flags_override_it(bench, monkeypatch, script):
    seen = []
    monkeypatch.setattr(script, "benchmark", lambda options, errors, **_: seen.append(options) or True)
    assert bench("--preset", "aim414").exit_code == 0
    assert bench("--preset", "aim414", "--seqlen", 512).exit_code == 0
    assert [(o.layers, o.seqlen, o.batch_size) for o in seen] == [(4, 16384, 1), (4, 512, 1)]


def test_defaults_are_those_of_the_benchmark(bench, monkeypatch, script):
    seen = []
    monkeypatch.setattr(script, "benchmark", lambda options, errors, **_: seen.append(options) or True)
    assert bench().exit_code == 0
    (options,) = seen
    assert (options.layers, options.seqlen, options.batch_size, options.dtype) == (4, 2048, 1, "bf16")
    assert (options.attn, options.warmup, options.iters, options.device) == (("eager", "sdpa", "nki"), 1, 5, "auto")
    assert options.command() == "python examples/qwen3_bench.py"


def test_the_neuron_variables_are_set_before_torch_and_keep_the_users_values(script, monkeypatch):
    monkeypatch.setenv("NEURON_RT_NUM_CORES", "4")
    monkeypatch.delenv("NKI_ENABLE_TRACE_CACHE", raising=False)
    script.prepare_environment(BenchOptions(device="neuron"))
    assert os.environ["NEURON_RT_NUM_CORES"] == "4"
    assert os.environ.pop("NKI_ENABLE_TRACE_CACHE") == "0"
    code = f"import runpy, sys; runpy.run_path({str(SCRIPT)!r}, run_name='not_main'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout.strip() == "False"


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_is_one_line(package):
    code = (
        f"import sys, runpy; sys.modules[{package!r}] = None; sys.argv = ['qwen3_bench.py']\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.strip() == f'the benchmark needs the {package} package: pip install "nki_hf[hf]"'


def test_an_interrupt_exits_cleanly_and_leaves_no_entry(small, tmp_path, interrupts):
    words = [str(word) for word in (*small, "--seqlen", 1024, "--iters", 100_000, "--attn", "sdpa")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and len(list((tmp_path / "cache").glob("*.ref"))) < 2:
            time.sleep(0.1)  # until it is inside the endless iterations
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=90)
    finally:
        process.kill()  # if it did not stop, its iterations would outlive the tests
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "interrupted" in errors
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".lock", ".lock", ".ref", ".ref"]
    assert not list((tmp_path / "out").iterdir())


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def soon(monkeypatch):
    """Progress is told at once."""
    monkeypatch.setenv("NKI_HF_PROGRESS", "1")
    monkeypatch.setattr("nki_hf.tools.progress.QUIET", 0.0)
    monkeypatch.setattr("nki_hf.tools.progress._LATER", (0.0, 0.05))


def test_the_progress_bar_is_on_standard_error_and_counts_every_step(script, soon, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    text = _Terminal()
    options = BenchOptions(attn=("sdpa",), iters=2, decode_steps=3)
    with script.progress(options, Console(file=text, force_terminal=True, width=100)) as (say, step):
        time.sleep(0.4)
        say("a line for the user")
        for number in range(5 + (1 + 1 + 2) + (1 + 1 + 2) + 2 * 3):
            step(f"step {number}")
        time.sleep(0.4)
    assert "a line for the user" in text.getvalue()
    assert "step 18" in text.getvalue()
    assert "18 of 19" in text.getvalue()  # the last one is under way


def test_where_nobody_watches_lines_say_what_runs(script, soon):
    text = io.StringIO()
    with script.progress(BenchOptions(), Console(file=text, force_terminal=False)) as (say, step):
        step("loading")
        say("a line for the user")
        step("nki: first call")
        time.sleep(0.3)
    lines = text.getvalue().splitlines()
    assert "a line for the user" in lines
    assert any(line.startswith("running the benchmark: nki: first call, 1 of ") for line in lines)
    assert "\x1b" not in text.getvalue()


def test_a_short_run_says_nothing_where_nobody_watches(script):
    text = io.StringIO()
    with script.progress(BenchOptions(), Console(file=text, force_terminal=False)) as (say, step):
        step("loading")
        say("a line for the user")
    assert text.getvalue().strip() == "a line for the user"
