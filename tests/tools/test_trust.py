"""What is executed and from where: code that comes with a model, kernel files, and what the package never does."""

import ast
import json
import re
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app
from nki_hf.kernels.registry import bindings
from nki_hf.tools.model_bench.model import load_subject
from nki_hf.tools.model_bench.options import BenchOptions, WrongUse

PACKAGE = Path(nki_hf.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "security.md").read_text()

CONFIGURATION = """
import pathlib
pathlib.Path(__file__).with_name("ran").write_text("")
pathlib.Path({ran!r}).write_text("")
from transformers import Qwen3Config
class OwnConfig(Qwen3Config):
    model_type = "own_model_of_a_test"
"""
MODELING = """
from transformers import Qwen3ForCausalLM
from .configuration_own import OwnConfig
class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A model folder with code of its own, which leaves the file `ran` when it runs."""
    folder = tmp_path / "own"
    folder.mkdir()
    auto_map = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    (folder / "config.json").write_text(json.dumps({"model_type": "own_model_of_a_test", "auto_map": auto_map, **sizes}))
    (folder / "configuration_own.py").write_text(CONFIGURATION.format(ran=str(tmp_path / "ran")))
    (folder / "modeling_own.py").write_text(MODELING)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path])
    return folder


def test_explain_refuses_code_of_a_model_and_names_it(remote):
    done = CliRunner().invoke(app, ["explain", "--model", str(remote)], input="y\n")
    assert done.exit_code == 2
    assert "(configuration_own.py, modeling_own.py), which would run with all of your rights" in done.stderr
    assert "--trust-remote-code" in done.stderr
    assert not (remote.parent / "ran").exists()


def test_explain_runs_code_of_a_model_that_is_trusted_and_says_so_before(remote):
    done = CliRunner().invoke(app, ["explain", "--model", str(remote), "--seqlen", "128", "--json", "--trust-remote-code"])
    assert done.exit_code == 0, done.stderr
    assert "running code that comes with it, configuration_own.py, modeling_own.py" in done.stderr
    assert (remote.parent / "ran").exists()
    assert {row["kernel"] for row in json.loads(done.stdout)} <= {kernel.name for kernel in bindings("forward")}


def test_the_benchmark_refuses_code_of_a_model(remote):
    with pytest.raises(WrongUse, match="--trust-remote-code"):
        load_subject(BenchOptions(model=str(remote), layers=1, seqlen=16))
    assert not (remote.parent / "ran").exists()


def test_a_model_that_transformers_knows_runs_without_its_own_code(remote):
    config = json.loads((remote / "config.json").read_text())
    (remote / "config.json").write_text(json.dumps({**config, "model_type": "qwen3"}))
    done = CliRunner().invoke(app, ["explain", "--model", str(remote), "--seqlen", "128", "--json"])
    assert done.exit_code == 0, done.stderr
    assert not (remote.parent / "ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "5",
        "null",
        "{",
        "\xff",
        '{"model_type": 5}',
        '{"auto_map": 5}',
        "[" * 100_000,
        '{"model_type": "qwen3", "hidden_size": "wide"}',
        '{"model_type": "qwen3", "head_dim": -1}',
    ],
)
def test_a_configuration_of_anything_is_one_sentence(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    done = CliRunner().invoke(app, ["explain", "--model", str(tmp_path), "--seqlen", "128"])
    assert done.exit_code == 2, (done.stdout, done.exception)
    assert len(done.stderr.splitlines()) == 1
    assert "fault of nki_hf itself" not in done.stderr


@pytest.mark.parametrize("offline", [True, False])
def test_a_model_that_cannot_be_fetched_is_said_at_once(monkeypatch, offline):
    """Not the hub's client, which tries for half a minute: neither it nor its sleep is reached."""
    asked = []

    def refused(address, timeout):
        asked.append(address)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("nki_hf.adapters.model_source.socket.create_connection", refused)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits"))
    done = CliRunner().invoke(app, ["explain", "--model", "nosuch/model"])
    assert done.exit_code == 2
    assert ("HF_HUB_OFFLINE is set" if offline else "cannot be reached (Name or service not known)") in done.stderr
    assert len(asked) == (not offline)


def test_verify_says_what_it_runs_before_it_runs_it(tmp_path):
    (tmp_path / "kernel.py").write_text("import sys\nprint('it runs', file=sys.stderr)\ndef kernel(q, k, v):\n    return q\n")
    done = CliRunner().invoke(app, ["verify", f"{tmp_path / 'kernel.py'}:nosuch"])
    first, second = done.stderr.splitlines()[:2]
    assert first == f"running {tmp_path / 'kernel.py'} as Python code, with all of your rights"
    assert second == "it runs"


def test_a_kernel_that_ends_the_process_is_a_finding(tmp_path):
    (tmp_path / "kernel.py").write_text("def kernel(q, k, v):\n    raise SystemExit(0)\n")
    done = CliRunner().invoke(app, ["verify", f"{tmp_path / 'kernel.py'}:kernel"])
    assert done.exit_code == 1
    assert "SystemExit" in done.stdout


def test_lint_runs_nothing(tmp_path):
    (tmp_path / "kernel.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    CliRunner().invoke(app, ["lint", str(tmp_path)])
    assert not (tmp_path / "ran").exists()


# ---- the claims of docs/security.md ---------------------------------------------------------------------------------

NEVER = {"eval", "exec", "compile", "pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "os.system",
         "os.popen", "torch.load", "np.load", "numpy.load", "yaml.load", "input"}  # fmt: skip
LOADS = re.compile(
    r"(importlib\.import_module|spec\.loader\.exec_module|builtins\.__import__|torch\.jit\.load|subprocess\.(?:run|Popen))\b"
)
WRITES = re.compile(
    r"\.(write_text|write_bytes|mkdir|unlink|rmtree|replace_file)\(|os\.(open|replace)\(|FileLock\(|"
    r"open\([^)]*\"(wb|w|ab|a)\"|TemporaryFile\(|whole_file\(|jit\.save\("
)


def _sources():
    return {str(file.relative_to(PACKAGE)): file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}


def _names(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            if not any(word.arg == "allow_pickle" and ast.unparse(word.value) == "False" for word in node.keywords):
                yield ast.unparse(node.func)


def test_nothing_of_the_package_evaluates_text_or_unpickles():
    found = {file: NEVER & set(_names(text)) for file, text in _sources().items()}
    assert not {file: names for file, names in found.items() if names}


@pytest.mark.parametrize(("pattern", "heading"), [(LOADS, "What is loaded"), (WRITES, "Where files are written")])
def test_the_page_lists_every_file_that_loads_code_or_writes(pattern, heading):
    section = PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`nki_hf/([\w/]+\.py)`", section))
    assert listed == {file for file, text in _sources().items() if pattern.search(text)}
