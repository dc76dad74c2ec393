"""What verbs print: it fits 60 and 80 columns, is plain, and what takes long says what runs."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import typer
from rich.table import Column, Table
from typer.testing import CliRunner

from nki_hf.chips.measurements import MEASUREMENTS
from nki_hf.cli import app
from nki_hf.dispatch import decide
from nki_hf.tools import progress
from nki_hf.tools.model_bench.profile import write_events
from nki_hf.tools.progress import Work, working
from nki_hf.tools.screen import PIPED, Screen
from nki_hf.tools.shape import problem_of

KERNEL = '''
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def twice(x):
    """One tile of 128 rows."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def reference(x):
    return 2 * x


def thrice(x):
    return 3 * x
'''
VERBS = {
    "bench-tasks": ("--small", "--tasks", "transpose", "--chip", "trn2", "--processes", "1", "--cache", "off"),
    "bench": ("--shape", "sq=512,skv=512,causal", "--chip", "trn2", "--layers", "2"),
    "chip": ("trn3",),
    "compare": ("kernel.py:twice", "kernel.py:twice", "--task", "softmax", "--check", "128", "--at", "128", "--chip", "trn2"),
    "correlate": ("--quick",),
    "cost": ("--shape", "hq=2,sq=512,causal"),
    "env": (),
    "explain": ("--model", "folder", "--seqlen", "64"),
    "judge": ("kernel.py:twice", "--task", "softmax", "--check", "128", "--at", "128", "--chip", "trn2"),
    "lint": ("kernel.py",),
    "loop": ("--run", "run", "--agent", "false", "--task", "softmax", "--check", "128", "--at", "128", "--rounds", "1"),
    "profile": ("x.events.jsonl",),
    "rank": (".", "--task", "softmax", "--check", "128", "--at", "128", "--chip", "trn2"),
    "report": ("--kernel", "v11", "--seqlen", "512", "--chip", "trn1", "--against", "v3"),
    "serving": (),
    "trace": ("--kernel", "v7", "--seqlen", "512", "-o", "x.svg"),
    "tune": ("flash_const_max", "--shape", "sq=512", "--const", "group=1,2", "--chip", "trn2", "--cache", "off"),
    "verify": ("kernel.py:twice", "--arg", "x=128x64", "--reference", "kernel.py:thrice"),
}
"""Words with which each verb says much, and soon."""
WHOLE = ("kernel.py:", "shell:", "nki_hf report ", "+", "-", "@@")
"""How a line begins that is copied, or read by another program."""
QUICK = {"chip", "env", "lint", "profile", "serving"}
"""Verbs that never take two seconds."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "kernel.py").write_text(KERNEL)
    write_events(tmp_path / "x.events.jsonl", [decide(problem_of("sq=128"), backend="simulator", chip="trn2", lnc=1)])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 2}))
    few = [item for item in MEASUREMENTS if item.family == "attention" and item.size <= 1024][:4]
    monkeypatch.setattr("nki_hf.tools.correlate.MEASUREMENTS", few)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


def _boxes(text):
    return {letter for letter in text if 0x2500 <= ord(letter) < 0x2600}


def _commands():
    return typer.main.get_command(app).commands


def test_every_verb_is_here():
    """A new verb comes with words that make it print; what `prompt` prints is a text for a model, whole lines."""
    assert set(_commands()) == set(VERBS) | {"prompt"}


# ---- widths ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
    """Progress is told at once."""
    monkeypatch.setenv("NKI_HF_PROGRESS", "1")
    monkeypatch.setattr(progress, "QUIET", 0.0)
    monkeypatch.setattr(progress, "_LATER", (0.0, 0.05))


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_what_a_verb_prints_fits_and_is_plain_and_says_what_runs(place, soon, monkeypatch, verb):
    """60 columns as COLUMNS says, and 80 in a pipe; a finding, a line of a diff, a path and a command to copy are whole."""
    said = {}
    for columns in (60, PIPED):
        if columns == PIPED:
            monkeypatch.delenv("COLUMNS")
        else:
            monkeypatch.setenv("COLUMNS", str(columns))
        done = CliRunner().invoke(app, [verb, *VERBS[verb]])
        assert done.exit_code in (0, 1), done.output
        said[columns] = done.stdout
        long = [line for line in done.stdout.splitlines() if len(line) > columns and not line.startswith(WHOLE)]
        assert [line for line in long if len(line.split()[-1]) <= columns // 2] == []  # a path or a name is never cut
        assert not {"\x1b", "…"} & set(done.stdout)  # nothing is coloured, nothing is cut
        assert not _boxes(done.stdout)
        running = [line for line in done.stderr.splitlines() if line.startswith(f"running nki_hf {verb}") and "so far" in line]
        assert running or verb in QUICK, done.stderr
        assert "\x1b" not in done.stderr
    assert len(said[60].split()) >= len(said[PIPED].split()) * 0.9  # the narrow one says as much


@pytest.mark.parametrize("verb", ["", *sorted(VERBS)])
def test_help_is_plain_and_fits(place, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "60")
    done = CliRunner().invoke(app, [*([verb] if verb else []), "--help"])
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert not _boxes(done.stdout)


@pytest.mark.parametrize("columns", [60, 80])
def test_a_real_terminal_gets_lines_of_its_width(place, columns):
    """Standard output and error are a terminal of so many columns: no line wraps, no escape sequence stands in it."""
    text, code = _on_terminal([sys.executable, "-m", "nki_hf", "report", *VERBS["report"][:-2]], columns, place)
    assert code == 0
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= columns
    text, code = _on_terminal([sys.executable, "-m", "nki_hf", "report", "--kernel", "nothing"], columns, place)
    assert code == 2
    assert 1 < len(text.splitlines())
    assert max(map(len, text.splitlines())) <= columns


def _on_terminal(words, columns, place):
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))}
    size = f"import fcntl, termios, struct; fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 24, {columns}, 0, 0))"
    subprocess.run([sys.executable, "-c", size], stdin=theirs, check=True)
    child = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, cwd=place, env=environment)
    os.close(theirs)
    taken = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:
            break
        if not data:
            break
        taken += data
    os.close(ours)
    return taken.decode().replace("\r\n", "\n"), child.wait()


def _shown(width, act):
    stream = io.StringIO()
    screen = Screen(stream)
    screen.width = width
    act(screen)
    return stream.getvalue().splitlines()


HEAD = ("name", "µs (sim)", "what it waits for")
ROWS = (("first", "1,234.5", "semaphore"), ("a longer second", "0.1", ""))


def test_a_table_that_fits_is_aligned():
    assert _shown(60, lambda s: s.table(HEAD, ROWS, title="times", left=(0, 2))) == [
        "times",
        "                 µs    what it",
        "name             (sim)  waits for",
        "first          1,234.5  semaphore",
        "a longer second      0.1",
    ] or _shown(60, lambda s: s.table(HEAD, ROWS, title="times", left=(0, 2)))[-2:] == [
        "first            1,234.5  semaphore",
        "a longer second      0.1",
    ]


def test_a_table_that_does_not_fit_is_a_block_per_row_and_keeps_every_cell():
    lines = _shown(24, lambda s: s.table(HEAD, ROWS))
    assert lines == ["first", "  µs (sim) 1,234.5; what", "  it waits for semaphore", "a longer second", "  µs (sim) 0.1"]


@pytest.mark.parametrize("width", [20, 33, 60])
def test_sentences_break_between_words_and_a_path_is_never_cut(width):
    path = "/" + "x" * 100
    lines = _shown(width, lambda s: s.say("word " * 30, f"  indented {path}", "", "end"))
    assert max(len(line) for line in lines if "x" not in line) <= width
    assert " ".join(" ".join(lines).split()) == "word " * 30 + f"indented {path} end"
    assert f"  {path}" in lines
    assert lines[-2:] == ["", "end"]
    assert f"      {path}" in _shown(width, lambda s: s.pairs([("name", f"in {path}")]))


@pytest.mark.parametrize("columns", ["", "40"])
@pytest.mark.parametrize("stream", [io.StringIO, lambda: _Terminal()])
def test_a_command_to_copy_is_one_line_everywhere(monkeypatch, stream, columns):
    """A terminal folds it without a line break, so that a copy of it is whole."""
    monkeypatch.setenv("COLUMNS", columns)
    command, file = "nki_hf report --shape " + "sq=128," * 20 + " -o page.html", stream()
    Screen(file).line(command)
    assert file.getvalue() == command + "\n"


def test_a_table_of_rich_is_shown_in_the_same_way():
    table = Table("chip", Column("µs", justify="right"), "n", title="[b]simulated[/b]", caption="note")
    table.add_row("trn1", "1.0", "12")
    table.add_row("trn2", "22.0", "3")
    assert _shown(40, lambda s: s.show(table)) == ["simulated", "chip    µs   n", "trn1   1.0  12", "trn2  22.0   3", "note"]


def test_the_lines_of_a_caption_stay_lines():
    table = Table("chip", caption="the first sentence\nthe second")
    table.add_row("trn1")
    assert _shown(40, lambda s: s.show(table))[-2:] == ["the first sentence", "the second"]


def test_names_stand_beside_their_values():
    lines = _shown(30, lambda s: s.pairs([("a", "one two three four five six"), ("name", "x")]))
    assert lines == ["a     one two three four five", "      six", "name  x"]


# ---- progress -------------------------------------------------------------------------------------------------------


def test_lines_come_now_and_then_with_an_estimate(soon):
    stream = io.StringIO()
    with working("the work", 4, file=stream) as work:
        work.begin("first step")
        time.sleep(0.12)
        work.advance("second step", count=2)
        time.sleep(0.12)
    first, *_, last = stream.getvalue().splitlines()
    assert first == "running the work, 0 of 4, 0 s so far" or first == "running the work: first step, 0 of 4, 0 s so far"
    assert last == "running the work: second step, 2 of 4, 0 s so far, nearly done"


def test_nothing_is_said_of_what_is_over_soon(monkeypatch):
    monkeypatch.setenv("NKI_HF_PROGRESS", "1")
    stream = io.StringIO()
    with working("the work", file=stream):
        pass
    assert stream.getvalue() == ""


def test_the_estimate_is_what_is_left_at_the_speed_so_far(monkeypatch):
    work = Work("the work", 10)
    monkeypatch.setattr(work, "began", time.monotonic() - 60)
    work.advance(count=3)
    assert work.text() == "running the work, 3 of 10, 60 s so far, about 2 min left"
    work.advance(count=20)
    assert work.text() == "running the work, 10 of 10, 60 s so far"  # more steps than were known


def test_the_estimate_counts_down_while_a_step_lasts(monkeypatch):
    """Three steps of 10 s were done when the fourth of five began; 4 s and 30 s later."""
    work = Work("the work", 5)
    now = time.monotonic()
    monkeypatch.setattr(work, "began", now - 34)
    work.done = 3
    monkeypatch.setattr(work, "advanced", now - 4)
    assert work.state() == "3 of 5, 34 s so far, about 16 s left"
    monkeypatch.setattr(work, "began", now - 60)
    monkeypatch.setattr(work, "advanced", now - 30)
    assert work.state() == "3 of 5, 60 s so far, about 15 s left"  # the last one is to come, and four took 60 s
    work.done, work.total = 3, 4
    assert work.state() == "3 of 4, 60 s so far, nearly done"


def test_a_step_that_takes_long_makes_what_is_left_longer(monkeypatch):
    """Two steps of 10 s, then one that has run 7 minutes: were it to end now, 23 more would take 440 / 3 s each."""
    work = Work("the work", 26)
    work.done, now = 2, time.monotonic()
    monkeypatch.setattr(work, "began", now - 440)
    monkeypatch.setattr(work, "advanced", now - 420)
    assert f"about {23 * 440 / 3 / 60:.0f} min left" in work.state()


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_narrow_terminal_shows_the_step_and_the_same_estimate_as_a_pipe(soon, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    with working("nki_hf cost of hq=16,hkv=8,sq=4096,causal", 3, file=stream) as work:
        monkeypatch.setattr(work, "began", time.monotonic() - 20)
        work.advance("on trn2")
        time.sleep(0.5)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "on trn2" in text
    assert "1 of 3, 20 s so far, about 40 s left" in text
    assert max(map(len, re.split(r"[\r\n]+", text))) <= columns


def test_a_silent_run_stays_silent(monkeypatch, soon):
    monkeypatch.setenv("NKI_HF_PROGRESS", "0")
    stream = io.StringIO()
    with working("the work", file=stream):
        time.sleep(0.1)
    assert stream.getvalue() == ""


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_gets_a_bar_that_vanishes(soon, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    stream = _Terminal()
    with working("the work", 3, file=stream) as work:
        work.advance("a step whose name is longer than the line " * 3)
        time.sleep(0.5)
    text = stream.getvalue()
    assert "the work" in text
    assert "1 of 3" in text
    assert text.rstrip().endswith(("\x1b[2K", "\x1b[?25h", "\x1b[1A\x1b[2K"))  # the line is cleared


def test_an_exception_passes_and_ends_the_bar(soon):
    with pytest.raises(KeyError), working("the work", file=io.StringIO()):
        raise KeyError("x")
    assert "_lines" not in " ".join(thread.name for thread in threading.enumerate())  # the thread that told has ended


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_stops_with_one_word(interrupts):
    code = (
        "import sys, time\nfrom nki_hf.tools import progress\nfrom nki_hf.tools.program import finished\n"
        "progress._LATER = (0.0, 60.0)\n"
        "def work():\n    with progress.working('the work', 3):\n        print('began', flush=True); time.sleep(60)\n"
        "sys.exit(finished(work))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NKI_HF_PROGRESS": "1"},
    )
    assert child.stdout.readline() == "began\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=20)
    assert child.returncode == 130
    assert errors.splitlines() == ["running the work, 0 of 3, 0 s so far", "interrupted."]
