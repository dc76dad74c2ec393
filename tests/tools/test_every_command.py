"""Every command with values, files, encodings, widths and pipes that nobody meant: one sentence, exit code 2, no traceback."""

import importlib.util
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.program import finished

ROOT = Path(__file__).parents[2]
VALUES = (
    "", " ", "-1", "0", "1", "1e11", "1" + "0" * 24, "9" * 5000, "-" + "9" * 30, "nan", "inf", "0x64", "1_0", "٣", "junk", "é✓",
    "\udcff", "a=b=c", ",,,", "=", ":", "\x1b[2J", "x" * 300, "x" * 100_000, "None", "__import__('os')",
)  # fmt: skip
FILES = (
    "folder",
    "folder.py",
    "pipe",
    "pipe.py",
    "loop.py",
    "bytes.py",
    "nul.py",
    "deep.py",
    "empty.py",
    "x" * 300 + ".py",
    "no/x.py",
)
# What makes each verb quick where the junk is taken.
QUICK = {
    "bench": ("--shape", "sq=128,skv=128", "--chip", "trn2"),
    "chip": (),
    "env": (),
    "lint": ("folder",),
    "correlate": ("--quick", "--write", "page.md"),
    "explain": ("--model", "nosuch"),
    "report": ("--shape", "sq=128,skv=128"),
    "serving": (),
    "trace": ("--shape", "sq=128,skv=128", "-o", "x.pftrace"),
    "judge": ("--task", "softmax", "--check", "128", "--at", "128", "--chip", "trn2", "empty.py"),
    "compare": ("--task", "softmax", "--check", "128", "--at", "128", "empty.py", "empty.py"),
    "rank": ("--task", "softmax", "--check", "128", "--at", "128", "--timeout", "2", "folder"),
    "bench-tasks": ("--small", "--tasks", "transpose", "--chip", "trn2", "--cache", "off"),
    "prompt": ("--task", "softmax"),
    "loop": ("--run", "run", "--agent", "false", "--task", "softmax", "--check", "128", "--at", "128", "--rounds", "1"),
    "tune": ("--task", "softmax", "--at", "128", "--const", "x=1", "--cache", "off", "--no-judge", "empty.py"),
    "cost": ("--shape", "hq=1,sq=128,skv=128", "--chip", "trn2"),
    "profile": (),
    "verify": (
        "--shape",
        "hq=1,sq=128,skv=128,d=64",
    ),
}


def _commands():
    return typer.main.get_command(app).commands


def _cases():
    """Every verb's every option with every value, and every argument; flags take none."""
    for verb, command in _commands().items():
        for param in command.params:
            if getattr(param, "is_flag", False):
                continue
            named = param.opts[0] if param.opts[0].startswith("-") else None
            for value in (*VALUES, *FILES):
                yield verb, named, value


CASES = list(_cases())


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of files that nobody can read, as the working directory. Permissions are left out: root may read everything."""
    for name in ("folder", "folder.py"):
        (tmp_path / name).mkdir()
    for name in ("pipe", "pipe.py"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "bytes.py").write_bytes(b"x = '\xff\xfe'\n")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000 + "\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "folder" / "config.json").write_text("[" * 100_000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def _held(code, output, errors):
    """What a command may end with."""
    assert code in (0, 1, 2), (code, errors)
    for text in (output, errors):
        assert "Traceback" not in text
        assert "fault of nki_hf itself" not in text, errors
    assert "\x1b[2J" not in errors
    if code == 2:
        lines = [line for line in errors.splitlines() if not line.startswith("running ")]
        assert len(lines) == 1, errors
        assert 0 < len(lines[0]) < 3000


def _invoke(words):
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    _held(done.exit_code, done.stdout, done.stderr)


def _words(verb, named, value):
    return [verb, *QUICK[verb], named, value] if named else [verb, *QUICK[verb][:-1] * (verb != "lint"), "--", value]


@pytest.mark.parametrize(
    ("verb", "named", "value"), random.Random(0).sample(CASES, 60), ids=lambda text: str(text)[:20] or "none"
)
def test_a_value_that_nobody_meant_is_one_sentence(place, verb, named, value):
    _invoke(_words(verb, named, value))


@pytest.mark.slow
@pytest.mark.parametrize("verb", sorted(QUICK))
def test_every_value_of_every_option_is_one_sentence(place, verb):
    for verb_, named, value in CASES:
        if verb_ == verb:
            _invoke(_words(verb, named, value))


def test_every_verb_is_covered():
    assert set(QUICK) == set(_commands())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rtol", "nan"), ("rtol", "-1"), ("rtol", "1e11"), ("memory", "0"), ("memory", "nan"), ("memory", "1e11"),
        ("timeout", "inf"), ("seed", "-2"), ("seed", "9" * 30), ("check", ",,,"), ("at", "1_0"), ("at", "٣"), ("layout", ","),
        ("against", "junk"), ("against", "pipe.py"), ("against", "folder"), ("against", "loop.py"), ("order", "nan"),
        ("dtype", "junk"), ("const", "="), ("task", "pipe.py"),
    ],
)  # fmt: skip
def test_judge_refuses_an_option_that_means_nothing_before_the_kernel_runs(place, option, value):
    done = CliRunner().invoke(app, ["judge", *QUICK["judge"], f"--{option}", value])
    assert done.exit_code == 2, done.stdout
    assert done.stderr.startswith(f"{option}")
    assert len(done.stderr.splitlines()) == 1


def test_judge_tells_a_file_that_is_not_there_from_one_that_fails(place):
    done = CliRunner().invoke(app, ["judge", *QUICK["judge"][:-1], "no/x.py"])
    assert (done.exit_code, done.stderr) == (2, "kernel=no/x.py is not a file: give FILE.py or FILE.py:NAME.\n")
    for file in ("empty.py", "bytes.py", "nul.py", "deep.py", "pipe.py", "folder.py", "loop.py", "./folder.py"):
        done = CliRunner().invoke(app, ["judge", *QUICK["judge"][:-1], "--json", "-", file])
        assert done.exit_code == 1
        assert json.loads(done.stdout)["stage"] == "load"


# ---- the scripts ----------------------------------------------------------------------------------------------------


def _script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SCRIPTS = {"qwen3_bench": ("--dry-run",), "device_bisect": ("--device", "junk"), "finetune": ("--dry-run",)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_takes_any_value_of_any_option(place, name):
    script = _script(name)
    options = [param.opts[0] for param in typer.main.get_command(script.app).params if not getattr(param, "is_flag", False)]
    for option in options:
        for value in (*VALUES, *FILES):
            done = CliRunner().invoke(script.app, [*SCRIPTS[name], option, value])
            assert done.exception is None or isinstance(done.exception, SystemExit), (option, value, repr(done.exception))
            _held(done.exit_code, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--seqlen", "100000000000"), "seqlen=100000000000 cannot be run: seqlen must be at most 2,147,483,647."),
        (("--seqlen", "2000000000", "--device", "cpu"), "for the hidden states alone"),
        (("--batch-size", "1" + "0" * 24), "batch_size must be at most"),
        (("--seed", "1" + "0" * 23), "is no seed of torch"),
        (("--iters", "1" + "0" * 24), "iters must be at most 1,000,000"),
        (("--window", "1" + "0" * 24), "is no window"),
        (("--seqlen", "1e11"), "not a valid integer"),
        (("--json", "x" * 300 + "/r.json"), "cannot be written (File name too long)"),
        (("--json", "loop.py/r.json"), "cannot be written"),
        (("--json", "folder"), "cannot be written (Is a directory)"),
    ],
)
def test_the_benchmark_refuses_sizes_and_files_in_one_sentence(place, words, text):
    done = CliRunner().invoke(_script("qwen3_bench").app, ["--layers", "1", *words])
    assert done.exit_code == 2
    assert text in done.stderr.replace("unable to parse string as an", "not a valid")
    assert len(done.stderr.splitlines()) == 1


# ---- processes: variables, encodings, widths, pipes -----------------------------------------------------------------


def _process(*words, **variables):
    """A command in a process of its own, with a short message if it hangs."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, *words], capture_output=True, env=environment, timeout=120)


PROGRAM = ("-c", "from nki_hf.cli import main; main()")
BENCH = str(ROOT / "examples" / "qwen3_bench.py")


@pytest.mark.parametrize(("variable", "value"), [("NKI_HF_CHIP", "junk"), ("NKI_HF_LNC", "é")])
def test_a_variable_that_cannot_be_read_is_wrong_use_and_no_verdict(variable, value):
    done = _process(BENCH, "--device", "cpu", "--layers", "1", "--seqlen", "16", **{variable: value})
    assert done.returncode == 2, done.stderr.decode()
    assert done.stderr.decode().startswith(f"{variable}={value!r}")
    assert done.stderr.count(b"\n") == 1


def test_env_names_variables_that_cannot_be_read_or_mean_nothing(monkeypatch):
    monkeypatch.setattr("nki_hf.settings._process", None)
    monkeypatch.setenv("NKI_HF_CHIP", "junk")
    monkeypatch.setenv("NKI_HF_CHIPS", "trn2")
    done = CliRunner().invoke(app, ["env"])
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())
    assert "NKI_HF_CHIP='junk' cannot be used: chip='junk' is not known: chip is one of trn1, trn2, trn3." in said
    assert "NKI_HF_CHIPS is no variable of nki_hf" in said
    assert "NKI_HF_PROGRESS is no variable" not in said


LADDER = str(ROOT / "nki_hf" / "ladder" / "v4_sbuf_resident.py")
TALKERS = (
    ("chip", "trn2"),
    ("--help",),
    ("bench", "--help"),
    ("report", "--shape", "sq=128,skv=128"),
    ("bench", "--shape", "sq=128,skv=128", "--chip", "trn2", "--layers", "2"),
    ("lint", LADDER),
    ("chip", "é\udcff"),
)
ENCODINGS = ("ascii", "latin-1", "cp1252", "utf-8", "utf-16", "ascii:strict", "koi8-r")


@pytest.mark.parametrize(("encoding", "words"), list(zip(ENCODINGS, TALKERS, strict=True))[2:5])
def test_standard_output_may_have_any_encoding(place, encoding, words):
    done = _process(*PROGRAM, *words, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    name = encoding.partition(":")[0]
    _held(done.returncode, done.stdout.decode(name), done.stderr.decode(name))
    assert done.returncode == (2 if words[-1] == "é\udcff" else 0), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("words", TALKERS, ids=lambda words: words[0])
def test_every_encoding_with_every_talker(place, encoding, words):
    test_standard_output_may_have_any_encoding(place, encoding, words)


class _Encoded(io.TextIOWrapper):
    """A stream of an encoding, as a terminal's; what is written is kept."""

    def __init__(self, encoding):
        super().__init__(io.BytesIO(), encoding=encoding)

    def text(self):
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("ascii", "1 us | v x -+ \\xe4 \\udcff"), ("latin-1", "1 µs | v x -+ ä \\udcff"), ("utf-8", "1 µs │ ✓ ✗ ─┬ ä \\udcff")],
)
def test_what_an_encoding_lacks_is_written_plainly(monkeypatch, encoding, text):
    stream = _Encoded(encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    assert finished(lambda: print("1 µs │ ✓ ✗ ─┬ ä \udcff", end="")) == 0
    assert stream.text() == text


@pytest.mark.parametrize("columns", ["1", "20", "0", "junk"])
def test_a_terminal_may_have_any_width(place, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for words in TALKERS[:-1]:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, repr(done.exception)


@pytest.mark.parametrize("words", [("chip", "trn2"), ("--help",), ("bench", "--shape", "sq=128,skv=128", "--chip", "trn2")])
@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_reader_that_leaves_changes_nothing(words, both):
    """As `nki_hf chip | head -1` does, without a shell: the reading end is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    error = writing if both else subprocess.PIPE
    done = subprocess.run([sys.executable, *PROGRAM, *words], stdout=writing, stderr=error, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr or b"") == (0, b"")


def test_a_verdict_is_kept_when_the_reader_leaves(tmp_path):
    """A kernel file that is refused stays refused, whoever reads."""
    (tmp_path / "kernel.py").write_text("import nki\n@nki.jit\ndef kernel(a):\n    return eval('a')\n\n\nx = (\n")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, *PROGRAM, "lint", tmp_path], stdout=writing, stderr=subprocess.PIPE, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_pipe_instead_of_a_file_is_not_waited_for(place):
    for words in ("lint pipe", "lint pipe.py", "lint .", "verify pipe.py:kernel", "explain --model .", "explain --model pipe"):
        _invoke(words.split())
    os.mkfifo(place / "config.json")
    _invoke(["explain", "--model", "."])
