"""The plan of a device run: complete for both worlds on a machine without Neuron, and it refuses what a world cannot do."""

import io
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from nki_hf.backends.neuron_world import Host
from nki_hf.errors import BackendUnavailable
from nki_hf.tools.model_bench.device.plan import cases, compiler_arguments, environment, path_with_own_programs, plan
from nki_hf.tools.model_bench.options import BenchOptions, WrongUse

ROOT = Path(__file__).parents[2]


def _host(**environ):
    def nothing(name):
        raise ModuleNotFoundError(name)

    return Host(import_module=nothing, version=lambda name: None, environ=environ, run=lambda command: None)


def test_dry_run_prints_both_worlds_without_torch_or_neuron():
    code = "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['b', '--dry-run', '--preset', 'aim414']; "
    code += "runpy.run_path('examples/qwen3_bench.py', run_name='__main__')"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "NKI_"))}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for words in (
        "# world: native",
        "# world: xla",
        'torch.compile(model.to("neuron"), backend="neuron", fullgraph=True, dynamic=False)',
        "export NEURON_RT_NUM_CORES=1",
        "export TORCH_NEURONX_NEFF_CACHE_DIR=",
        "--auto-cast=none -O1 --lnc=2",
        "--seqlen 16384 --device xla --warmup 3 --compile-only",
        "--padded",
        "--window 2048",
        "--seqlen 16361",
        "NEURON_RT_INSPECT_ENABLE=1",
        "neuron-explorer capture -n",
        "--output-format perfetto",
        "ui.perfetto.dev",
    ):
        assert words in done.stdout, words


def test_native_has_its_own_variables_and_no_compiler_arguments():
    options = BenchOptions()
    native, xla = environment(options, "neuron"), environment(options, "xla")
    assert set(xla) < set(native)
    assert native["TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"] == "1"
    assert environment(options, "cpu") == {}
    assert environment(options, "auto") == native
    assert compiler_arguments("neuron", 2) == ()


@pytest.mark.parametrize("lnc", [1, 2])
def test_the_compilers_lnc_is_the_runtimes(lnc):
    made = plan(BenchOptions(), "xla", _host(NEURON_LOGICAL_NC_CONFIG=str(lnc)))
    assert made.compiler_arguments[-1] == f"--lnc={lnc}"
    assert made.lnc == f"{lnc} (NEURON_LOGICAL_NC_CONFIG)"


def test_an_unknown_lnc_is_called_assumed():
    assert plan(BenchOptions(), "xla", _host()).lnc.startswith("2 (assumed")


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_CC_FLAGS": "--lnc=2"}, "LNC differs between"),
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "is not a logical-core degree: it must be 1 or 2."),
        ({"NKI_SIMULATOR": "1"}, "NKI_SIMULATOR=1"),
    ],
)
def test_a_dry_run_of_a_contradiction_is_one_line_and_exit_code_2(variables, line):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "NKI_"))}
    command = [sys.executable, "examples/qwen3_bench.py", "--dry-run"]
    done = subprocess.run(
        command, cwd=ROOT, env={**environ, **variables, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_bisect_without_a_device_is_one_line_and_exit_code_2():
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "examples/device_bisect.py"], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "device='neuron' is not on this machine" in done.stderr


def test_the_graph_that_is_profiled_alone_is_the_one_traced_last_with_nki_and_what_is_captured_is_viewed(tmp_path):
    options = BenchOptions(cache_dir=tmp_path / "a cache")
    for age, (key, attn) in enumerate([("b1", "nki"), ("a2", "nki"), ("c3", "sdpa")]):
        home = options.traced_dir / key
        home.mkdir(parents=True)
        (home / "key.json").write_text(json.dumps({"attn": attn, "dtype": "bf16"}, indent=1))
        os.utime(home / "key.json", (1000 + age, 1000 + age))
    commands = [command for _, command in plan(options, "xla", _host()).commands]
    (find,) = (command for command in commands if command.startswith("KEY="))
    capture, view = (command for command in commands[commands.index(find) :] if "$KEY" in command)
    line = f"{find}; neuron-explorer() {{ printf '%s\\n' \"$@\"; }}; {capture}; {view}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    neff = str(options.traced_dir / "a2" / "compiler" / "graph.neff")
    assert done.stdout.splitlines() == [
        *("capture", "-n", neff, "-s", "profile.ntff", "--profile-nth-exec=2"),
        *("view", "-n", neff, "-s", "profile_exec_2.ntff", "--output-format", "summary-text"),
    ]


@pytest.mark.parametrize("script", ["qwen3_bench.py", "device_bisect.py"])
def test_a_script_of_a_clone_that_is_not_installed_says_so_in_one_line(script, tmp_path):
    code = "import sys, runpy; sys.modules['nki_hf'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-c", code, str(ROOT / "examples" / script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert 'pip install -e ".[hf]" in the folder of this clone' in done.stderr


def test_timing_and_profiling_never_share_a_process():
    commands = dict(plan(BenchOptions(), "neuron", _host()).commands)
    profiled = [command for command in commands.values() if "NEURON_RT_INSPECT_ENABLE=1" in command]
    assert len(profiled) == 1
    assert profiled[0].endswith("--compile-only")
    assert "inspect" not in " ".join(environment(BenchOptions(), "neuron")).lower()


def test_cases_beside_the_headline_are_those_where_sdpas_own_kernel_does_not_apply():
    by_name = {name: options for name, options in cases(BenchOptions(seqlen=16384))}
    padded, odd, window = by_name.values()
    assert padded.padded
    assert odd.seqlen % 512 != 0
    assert window.window == 2048
    assert len({options.json for options in by_name.values()} | {BenchOptions().json}) == 4


@pytest.mark.parametrize("seqlen", [2, 33, 65, 535, 1047, 2048, 16384])
def test_the_odd_length_is_none_that_sdpas_own_kernel_takes(seqlen):
    odd = dict(cases(BenchOptions(seqlen=seqlen)))
    lengths = {options.seqlen for options in odd.values()} - {seqlen}
    assert len(lengths) == 1
    assert all(1 < length and length % 512 for length in lengths)


def test_a_device_warms_up_three_times_unless_told_otherwise():
    warmed = runpy.run_path(str(ROOT / "examples" / "qwen3_bench.py"))["with_warmup"]
    assert [warmed(BenchOptions(), device, False).warmup for device in ("cpu", "neuron", "xla")] == [1, 3, 3]
    assert warmed(BenchOptions(warmup=1), "neuron", True).warmup == 1


def test_a_dry_run_of_decode_keeps_the_plan_of_the_world_that_can(capsys):
    script = runpy.run_path(str(ROOT / "examples" / "qwen3_bench.py"))
    assert script["show_plans"](BenchOptions(decode_steps=4))
    out = capsys.readouterr().out
    assert "# world: native" in out
    assert "--decode-steps 4" in out
    assert "# device xla: decode_steps=4 cannot be timed on xla" in out
    with pytest.raises(WrongUse):
        script["show_plans"](BenchOptions(decode_steps=4, device="xla"))


def test_decode_on_xla_is_refused():
    with pytest.raises(WrongUse, match="a traced module has no cache that grows"):
        plan(BenchOptions(decode_steps=4), "xla", _host())
    plan(BenchOptions(decode_steps=4), "neuron", _host())


@pytest.mark.parametrize("code", [0, 3])
def test_the_device_run_compiles_first_in_a_process_of_its_own(monkeypatch, code):
    script = runpy.run_path(str(ROOT / "examples" / "qwen3_bench.py"))
    seen = []

    def run(command, check):
        seen.append(command)
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(subprocess, "run", run)
    compile_first = script["compile_in_a_process_of_its_own"]
    options = BenchOptions(device="neuron", seqlen=512, attn=("nki",))
    if code:
        with pytest.raises(BackendUnavailable, match=r"compiling for neuron failed \(exit code 3\)"):
            compile_first(options)
    else:
        compile_first(options)
    assert seen[0][0] == sys.executable
    assert seen[0][2:] == ["--seqlen", "512", "--attn", "nki", "--device", "neuron", "--warmup", "1", "--compile-only"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "{own}"),
        ("/usr/bin", "{own}:/usr/bin"),
        ("{own}:/usr/bin", "{own}:/usr/bin"),
        ("/opt/b/bin:{own}", "{own}:/opt/b/bin:{own}"),
    ],
)
def test_programs_beside_this_python_come_before_those_of_another_venv(path, expected):
    own = os.path.dirname(sys.executable)
    assert path_with_own_programs(path.format(own=own)) == expected.format(own=own)


def test_what_a_step_of_the_bisect_found_is_in_the_file_before_the_next_step_begins(monkeypatch):
    main = runpy.run_path(str(ROOT / "examples" / "device_bisect.py"))["main"]
    file, seen = io.BytesIO(), []

    def run(command, **_):
        seen.append(file.getvalue().decode().splitlines())
        return subprocess.CompletedProcess(command, len(seen) > 2, stdout="found", stderr="broken")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file))
    with mock.patch.dict(os.environ), pytest.raises(BaseException, match="1"):
        main(device="cpu")
    assert [len(lines) for lines in seen] == [0, 1, 2]
    assert seen[-1][0] == "torch: ok, found"
    assert "FAILED" in file.getvalue().decode()
