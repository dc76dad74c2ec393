"""Names and values from outside steer no terminal, and an interrupt while modules load is one word."""

import io
import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.progress import working
from nki_hf.tools.screen import Screen

ROOT = Path(__file__).parents[2]
HOSTILE = "a\x1b[31mb\x07\x9b2Jc\u202ed\rz"
"""Escape, bell, the 8-bit escape, right-to-left override, carriage return."""


def _controls(text):
    """Control and formatting characters of a text, by Unicode's own classes; the ends of lines are ours."""
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c != "\n"]


@pytest.mark.parametrize(
    "shown",
    [
        lambda screen: screen.say(HOSTILE),
        lambda screen: screen.line(HOSTILE),
        lambda screen: screen.pairs([("name", HOSTILE)]),
        lambda screen: screen.table(("x", "y"), [[HOSTILE, "1"]], title=HOSTILE),
        lambda screen: screen.table(("x" * 50, "y" * 50), [[HOSTILE, "1" * 60]]),
    ],
    ids=["say", "line", "pairs", "table", "blocks"],
)
def test_a_screen_passes_no_control_characters_on(shown):
    stream = io.StringIO()
    shown(Screen(stream))
    assert _controls(stream.getvalue()) == []
    assert "a\\x1b[31mb" in stream.getvalue()


def test_a_line_feed_in_a_cell_ends_no_row():
    stream = io.StringIO()
    Screen(stream).table(("x", "y"), [["a\nb", "1"], ["c", "2"]])
    assert len(stream.getvalue().splitlines()) == 3


def test_progress_names_a_hostile_file_in_one_line(monkeypatch):
    monkeypatch.setattr("nki_hf.tools.progress._LATER", (0.0, 60.0))
    monkeypatch.setenv("NKI_HF_PROGRESS", "1")
    stream = io.StringIO()
    with working("the work", 3, file=stream) as work:
        work.begin(f"{HOSTILE}\n.py")
        work.tell(HOSTILE)
        said = work.text()
    assert _controls(said) == []
    assert "\n" not in said
    assert _controls(stream.getvalue()) == []


def test_a_price_file_steers_no_terminal(tmp_path):
    item = {
        "name": f"{HOSTILE}\nrm",
        "chip": "trn2",
        "accelerators": 1,
        "cores": 8,
        "prices": [{"dollars": 1, "kind": HOSTILE, "date": HOSTILE, "source": "s"}],
    }
    (tmp_path / "p.json").write_text(json.dumps({"instances": [item]}))
    done = CliRunner().invoke(app, ["cost", "--shape", "hq=1,sq=128,skv=128", "--prices", str(tmp_path / "p.json")])
    assert done.exit_code == 0, done.output
    assert _controls(done.output) == []


STOP = """
import runpy, sys
class Stop:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
sys.argv = {words!r}
{start}
"""


@pytest.mark.parametrize("program", ["nki_hf", "qwen3_bench", "finetune", "serve"])
def test_an_interrupt_while_modules_load_is_one_word(program):
    if program == "nki_hf":
        start, module, words = "from nki_hf.cli import main; main()", "nki_hf.tools.costing.text", ["nki_hf", "cost"]
    else:
        path = str(ROOT / "examples" / f"{program}.py")
        start, module, words = f"runpy.run_path({path!r}, run_name='__main__')", "nki_hf.tools.screen", [path]
        start = f"sys.path.insert(0, {str(ROOT / 'examples')!r}); {start}"
    code = STOP.format(module=module, words=words, start=start)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted.\n")
