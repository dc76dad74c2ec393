"""Every script of tools/ and examples/, and every module that runs with `-m`: its options with values that nobody meant."""

import argparse
import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
VALUES = (
    "",
    " ",
    "-1",
    "0",
    "1e11",
    "9" * 5000,
    "nan",
    "inf",
    "0x64",
    "1_0",
    "٣",
    "junk",
    "é✓",
    "a=b",
    ",,,",
    "x" * 300,
    "nul\0",
    "..",
)
BY_TYPER = ("examples/qwen3_bench.py", "examples/device_bisect.py", "examples/finetune.py", "examples/serve.py")
"""Their options stand in test_every_command.py, and those of the last one here."""
BY_WORDS = {
    "tools/docs_site.py": (("-x",), ("a", "b")),
    "tools/graph_ways.py": (("junk",),),
    "tools/lint_public.py": (("no/such/folder",), ()),
    "tools/version_smoke.py": (("--junk",),),
}
"""Scripts that read their words themselves, and words that mean nothing to them."""
NO_WORDS = {
    "tools/layer_speed.py": "takes none",
    "tools/schedule_speed.py": "takes none",
    "examples/scripted_agent.py": "a stand-in for an agent, which reads what it is asked from its input",
    "nki_hf/tools/judging/server.py": "speaks with the judge over pipes (tests/tools/test_judge.py)",
    "nki_hf/tools/searching/worker.py": "speaks with its parent over pipes (tests/tools/test_tune.py)",
    "nki_hf/sim/constraints/table.py": "takes none",
    "tools/xla_environment.py": "takes none",
    "nki_hf/sim/surface/__main__.py": "takes none",
    "nki_hf/__main__.py": "the command line, whose verbs stand in test_every_command.py",
    "nki_hf/serve.py": "its options are Transformers'; what it is sent stands in test_serve_bodies.py",
    "tools/fuzz/serving_worker.py": "speaks with the search over pipes (tests/project/test_fuzz.py)",
    "examples/http_serving/process.py": "started by http_serving/server.py with what it holds",
}


def scripts():
    """Files that do something when they are run, relative to the root."""
    found = set()
    for folder in ("tools", "examples", "nki_hf"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if path.name == "__main__.py" or '__name__ == "__main__"' in text:
                found.add(path.relative_to(ROOT).as_posix())
    return found


BY_ARGPARSE = sorted(
    name for name in scripts() if "ArgumentParser(" in (ROOT / name).read_text(encoding="utf-8") and name not in NO_WORDS
)


class Parsed(Exception):
    """The words were taken: what would run then is not run."""


def parsed(monkeypatch, capsys, name, words):
    """How a script's parser ends with these words: an exit code, or None where it takes them; the parser, and what was said."""
    seen = []
    real = argparse.ArgumentParser.parse_args

    def parse_args(parser, given=None, namespace=None):
        seen.append(parser)
        real(parser, given, namespace)
        raise Parsed

    known = argparse.ArgumentParser.parse_known_args

    def parse_known_args(parser, given=None, namespace=None, **more):
        found = known(parser, given, namespace, **more)
        if sys._getframe(1).f_code.co_filename == argparse.__file__:
            return found
        seen.append(parser)  # the script passes on what it does not know
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
    monkeypatch.setattr(sys, "argv", [name, *words])
    monkeypatch.setattr(sys, "path", [str((ROOT / name).parent), *sys.path])
    code = None
    try:
        runpy.run_path(str(ROOT / name), run_name="__main__")
    except Parsed:
        pass
    except SystemExit as end:
        code = end.code
    finally:
        monkeypatch.undo()
    return code, seen[0], capsys.readouterr()


@pytest.mark.parametrize("name", BY_ARGPARSE)
def test_a_script_takes_any_value_of_any_option_or_refuses_it_in_one_sentence(monkeypatch, capsys, name):
    code, parser, told = parsed(monkeypatch, capsys, name, ["--no-such-option"])
    assert code == (None if name == "tools/report_pictures.py" else 2), told  # which passes words on to `nki_hf report`
    words = []
    for action in parser._actions:
        if action.nargs == 0 or isinstance(action, argparse._SubParsersAction | argparse._HelpAction):
            continue
        words += [[action.option_strings[-1] + "=" + value] if action.option_strings else ["--", value] for value in VALUES]
    monkeypatch.setattr(sys, "argv", [name])
    ends = []
    for given in words:
        with monkeypatch.context() as patch:
            patch.setattr(argparse.ArgumentParser, "exit", _ended)
            try:
                parser.parse_args(given)
            except _End as end:
                ends.append((given, end.code, len((end.message or "").strip().splitlines())))
            told = capsys.readouterr()
            assert "Traceback" not in told.out + told.err
    assert all(code == 2 and lines == 1 for _, code, lines in ends), ends


class _End(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code, self.message = code, message


def _ended(parser, status=0, message=None):
    raise _End(status, message)


SLOW = ("tools/graph_ways.py", "tools/version_smoke.py")
"""They import models before they read their words."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in BY_WORDS])
def test_a_script_without_a_parser_refuses_words_that_mean_nothing(name, tmp_path):
    for words in BY_WORDS[name]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [sys.executable, ROOT / name, *words], cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=120
        )
        assert done.returncode not in (0, -9), (words, done.stdout)
        assert "Traceback" not in done.stderr, (words, done.stderr)


def test_the_server_of_the_example_takes_any_value_of_any_option(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.chdir(tmp_path)
    serve = importlib.import_module("serve")

    def stop(*given, **options):
        raise ValueError("no server is started here.")

    monkeypatch.setattr(serve, "serve", stop)
    monkeypatch.setattr(serve, "small_model", lambda folder: folder)
    options = [param for param in typer.main.get_command(serve.app).params if not getattr(param, "is_flag", False)]
    assert len(options) > 4
    for option in options:
        for value in VALUES:
            done = CliRunner().invoke(serve.app, [option.opts[0], value])
            assert isinstance(done.exception, SystemExit), (option.opts, value, repr(done.exception))
            assert done.exit_code == 2
            assert len(done.stderr.splitlines()) == 1, done.stderr


def test_every_script_is_here_or_named_with_a_reason():
    assert scripts() == {*BY_ARGPARSE, *BY_TYPER, *BY_WORDS, *NO_WORDS}
