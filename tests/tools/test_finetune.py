"""examples/finetune.py as a user runs it: on a CPU, and the commands of its dry run against the stand-ins of both worlds."""

import importlib.util
import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REHEARSE = runpy.run_path(str(ROOT / "tests" / "fakes" / "rehearse.py"))
OURS = ("NEURON_", "NKI_", "TORCH_NEURONX_", "FAKE_")
SMALL = ("--steps", "2", "--seqlen", "32", "--batch-size", "1", "--attn", "eager,nki")


def _run(words, **extra):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    environ = {**plain, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **extra}
    return subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, env=environ, capture_output=True, text=True)


@pytest.mark.timeout(300)
def test_a_packed_checkpointed_run_has_the_losses_of_eager(tmp_path):
    done = _run(["examples/finetune.py", *SMALL, "--packed", "--checkpointing", "--json", tmp_path / "r.json"])
    assert done.returncode == 0, (done.stdout, done.stderr)
    runs = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert runs["nki"]["losses"] == pytest.approx(runs["eager"]["losses"], abs=1e-3)
    assert len(set(runs["eager"]["losses"])) == 2
    # Two layers and two steps; a checkpointed layer computes its attention twice.
    assert (runs["nki"]["calls"], runs["nki"]["gradients"], runs["nki"]["fallbacks"]) == (8, 4, 0)
    assert runs["eager"]["calls"] == 0
    assert (tmp_path / "r.png").stat().st_size > 1000


@pytest.mark.timeout(300)
def test_trls_trainer_packs_and_has_the_losses_of_eager(tmp_path):
    pytest.importorskip("trl", reason="TRL is not installed; it brings pandas and pyarrow, and no other test needs it")
    done = _run(["examples/finetune.py", *SMALL, "--trl", "--seqlen", "200", "--json", tmp_path / "r.json"])
    assert done.returncode == 0, (done.stdout, done.stderr)
    runs = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert runs["nki"]["losses"] == pytest.approx(runs["eager"]["losses"], abs=1e-3)
    assert len(set(runs["eager"]["losses"])) == 2
    assert (runs["nki"]["gradients"], runs["nki"]["fallbacks"]) == (4, 0)


def test_wrong_words_are_said_in_one_line():
    done = _run(["examples/finetune.py", "--attn", "flash"])
    assert done.returncode == 2
    assert "attn='flash' is not known" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("world", "device"), [("native", "neuron"), ("xla", "xla")])
def test_the_commands_of_the_dry_run_train_on_the_stand_ins(world, device, tmp_path):
    shown = _run(["examples/finetune.py", *SMALL, "--dry-run", "--device", device, "--json", tmp_path / "r.json"])
    lines = shown.stdout.splitlines()
    variables = dict(shlex.split(line)[1].split("=", 1) for line in lines if line.startswith("export "))
    (command,) = (line for line in lines if line.startswith("python "))
    plain = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    done = _run(shlex.split(command)[1:], **REHEARSE["environment"](world, tmp_path, {**plain, **variables}))
    assert done.returncode == 0, (done.stdout, done.stderr)
    (process,) = REHEARSE["processes"](tmp_path)
    assert (process["compiled"], process["loaded"]) == ({"flash_prefill": 1, "flash_backward": 1}, {})
    assert len(list((tmp_path / "neff").glob("*.neff"))) == (2 if world == "native" else 0)


@pytest.mark.parametrize(
    ("losses", "code", "said"),
    [([2.0, 1.0], 0, "PASS"), ([2.0, 1.1], 1, "FAIL"), ([2.0, float("nan")], 1, "FAIL"), ([float("nan"), 1.0], 1, "FAIL")],
)
def test_losses_that_are_far_or_no_number_fail(capsys, losses, code, said):
    example = _module()
    row = {"losses": [2.0, 1.0], "fallbacks": 0, "gradients": 4, "reasons": {}}
    assert example.verdict({"eager": row, "nki": {**row, "losses": losses}}, 1e-3) == code
    assert capsys.readouterr().out.startswith(said)


def test_nothing_passes_that_was_not_compared(capsys):
    row = {"losses": [2.0], "fallbacks": 0, "gradients": 4, "reasons": {}}
    assert _module().verdict({"nki": row}, 1e-3) == 0
    assert capsys.readouterr().out.startswith("NOT COMPARED")


def _module():
    spec = importlib.util.spec_from_file_location("finetune_example", ROOT / "examples" / "finetune.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
