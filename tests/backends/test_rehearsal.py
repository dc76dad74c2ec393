"""The scripts as a user runs them on a device, start to finish in their own processes, against the stand-ins of both worlds."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REHEARSE = runpy.run_path(str(ROOT / "tests" / "fakes" / "rehearse.py"))
DEVICE = {"native": "neuron", "xla": "xla"}
HEADLINE = {"native": {"graph": 3, "kernel": 1}, "xla": {"trace": 3, "kernel": 1}}
"""What eager, sdpa and nki compile for one shape."""
OURS = ("NEURON_", "NKI_", "TORCH_NEURONX_", "FAKE_")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def _run(world, folder, words, **extra):
    """A finished process, and what it and its children did on the stand-ins."""
    folder.mkdir(exist_ok=True)
    log = folder / "processes.jsonl"
    log.unlink(missing_ok=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    environ = {**plain, **REHEARSE["environment"](world, folder, plain), "OMP_NUM_THREADS": "1", **extra}
    done = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, env=environ, capture_output=True, text=True)
    return done, REHEARSE["processes"](folder)


def _kinds(counted):
    """What a process compiled or loaded, kernels by no name: dispatch chooses among them."""
    found = Counter()
    for name, count in counted.items():
        found[name if name in ("graph", "trace") else "kernel"] += count
    return found


def _options(folder, model, *more):
    files = ("--cache-dir", folder / "cache", "--json", folder / "r.json")
    return ("--model", model, "--layers", 1, "--seqlen", 64, "--iters", 1, "--warmup", 1, *files, *more)


def _plan(text):
    """Variables, compiler arguments and `(what for, command)` of what --dry-run printed."""
    lines = text.splitlines()
    variables = dict(shlex.split(line)[1].split("=", 1) for line in lines if line.startswith("export "))
    (arguments,) = (line.split(": ")[1] for line in lines if line.startswith("# compiler arguments"))
    (kept,) = (number for number, line in enumerate(lines) if line.startswith("# kept in"))
    commands = list(zip(lines[kept + 1 :: 2], lines[kept + 2 :: 2], strict=True))
    return variables, arguments, [(what.removeprefix("# "), command) for what, command in commands]


@pytest.mark.parametrize("world", DEVICE)
def test_every_command_of_the_dry_run_does_what_it_says(world, tiny_folder, tmp_path):
    options = _options(tmp_path, tiny_folder, "--device", DEVICE[world])
    script = "examples/qwen3_bench.py"
    shown, _ = _run(world, tmp_path, [script, *options, "--dry-run"])
    assert shown.returncode == 0, shown.stderr
    variables, arguments, commands = _plan(shown.stdout)
    tools = [command for _, command in commands if command.startswith(("neuron-explorer ", "KEY="))]
    assert len(tools) == (5 if world == "xla" else 2)  # AWS's own program, which cannot be rehearsed
    ours = [(what, command) for what, command in commands if command not in tools]
    assert len(ours) == 6
    ours.append(("again", ours[1][1]))
    for what, command in ours:
        words = shlex.split(command)
        extra = dict(word.split("=", 1) for word in words[: words.index("python")])
        kept = (tmp_path / "r.json").read_text() if (tmp_path / "r.json").exists() else None
        done, processes = _run(world, tmp_path, words[words.index("python") + 1 :], **extra)
        assert done.returncode == 0, (what, done.stdout, done.stderr)
        last = processes[-1]
        for process in processes:
            assert {name: process["variables"].get(name) for name in variables} == variables
            if process["compiler_arguments"]:
                assert process["compiler_arguments"] == [arguments.split()]
        if what.startswith("compile"):
            assert _kinds(last["compiled"]) == HEADLINE[world]
        elif what.startswith("profile"):
            assert last["variables"]["NEURON_RT_INSPECT_ENABLE"] == "1"
            assert ((tmp_path / "r.json").read_text(), last["compiled"]) == (kept, {})
        else:
            _check_timed(world, what, command, processes)


def _check_timed(world, what, command, processes):
    compiler, timer = processes  # in the order of their ends
    assert compiler["argv"][-1] == "--compile-only"
    if what.startswith(("time, ", "again")):
        assert compiler["compiled"] == {}, what
    else:
        whole = "graph" if world == "native" else "trace"
        assert compiler["compiled"][whole] == 3, what
        # In a graph a window is a mask like any other, so its kernel may be the headline's.
        assert _kinds(compiler["compiled"]) + _kinds(compiler["loaded"]) == HEADLINE[world], what
    assert timer["compiled"] == {}, what
    found = dict(HEADLINE[world])
    if world == "xla":
        del found["kernel"]  # it is inside the traced model
    assert _kinds(timer["loaded"]) == found, what
    assert timer["waits"] == (3 * 2 * 3 if world == "native" else 0)  # three attentions, before and after three calls
    result = json.loads(Path(re.search(r"--json (\S+)", command).group(1)).read_text())
    assert result["passed"], what
    assert [row["attn"] for row in result["rows"]] == ["eager", "sdpa", "nki"]
    assert all(row["accuracy"]["passed"] and row["timing"] for row in result["rows"])
    assert "+standin" in result["header"]["neuron packages"]  # no reader may take this for a measurement


@pytest.mark.parametrize("world", DEVICE)
def test_the_bisect_runs_to_its_end_each_step_in_a_process_of_its_own(world, tmp_path):
    sizes = "--heads 4 --kv-heads 2 --seqlen 48 --head-dim 16 --layers 2".split()
    done, processes = _run(world, tmp_path, ["examples/device_bisect.py", "--device", DEVICE[world], *sizes])
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert steps[:3] == ["torch", "kernel", "kernel-padded"]
    assert len(steps) == (7 if world == "native" else 5)
    assert len(processes) == len(steps) + 1


BROKEN = {"FAKE_NEURON_BROKEN": "kernel=NCC_EBVF030: internal compiler error", "FAKE_NEURON_LATCHES": "1"}
"""The kernel does not compile, and the failure comes out at the next op."""


def test_a_failure_that_comes_out_at_the_next_op_stays_in_the_process_and_the_step_that_caused_it(tiny_folder, tmp_path):
    command = ["examples/qwen3_bench.py", *_options(tmp_path, tiny_folder, "--device", "neuron", "--attn", "nki")]
    done, processes = _run("native", tmp_path, command, **BROKEN)
    assert done.returncode == 2
    assert "NCC_EBVF030" in done.stderr
    assert "fault of nki_hf" not in done.stderr
    assert "compiling for neuron failed (exit code 2)" in done.stderr
    assert not (tmp_path / "r.json").exists()
    assert processes[-1]["waits"] == 0  # the process that would have timed never called the device
    done, _ = _run("native", tmp_path, ["examples/device_bisect.py", "--seqlen", 32, "--heads", 2, "--kv-heads", 1], **BROKEN)
    assert done.returncode == 1
    assert done.stdout.startswith("torch: ok")
    assert "kernel: FAILED" in done.stdout
    assert "The first step that fails is 'kernel'" in done.stdout
    assert "NCC_EBVF030" in done.stdout


@pytest.mark.parametrize(
    ("world", "words"), [("placeholder", "has neither trace (xla) nor nki_op (native)"), ("container", "sees no")]
)
def test_the_report_of_a_broken_installation_blames_that_installation_alone(world, words, tmp_path):
    done, _ = _run(world, tmp_path, ["-m", "nki_hf", "env"])
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
    assert "fake_neuron" not in done.stdout + done.stderr
    assert "attn_implementation    registered (attention and mask)" in done.stdout


def test_the_core_belongs_to_one_process_at_a_time(tiny_folder, tmp_path):
    """Every other test here passes because the parent of a compiling process leaves the core alone; one that does not:"""
    words = [str(word) for word in _options(tmp_path, tiny_folder, "--device", "neuron", "--attn", "nki")]
    code = "import runpy, sys, torch, torch_neuronx; held = torch.ones(1).to('neuron'); "
    code += f"sys.argv = ['examples/qwen3_bench.py', *{words}]; runpy.run_path(sys.argv[0], run_name='__main__')"
    done, _ = _run("native", tmp_path, ["-c", code])
    assert done.returncode == 2
    assert "fake_neuron raised Refused: [core-one-process]" in done.stderr
    assert "fault of nki_hf" not in done.stderr
    assert "compiling for neuron failed (exit code 2)" in done.stderr
