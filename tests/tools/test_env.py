"""`nki_hf env`: works with anything missing, and names each combination that is known to fail."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from typer.testing import CliRunner

from nki_hf.backends.neuron_world import Host
from nki_hf.cli import app
from nki_hf.tools.env import _programs, front_end, report
from nki_hf.tools.env_rules import RULES, Facts, findings, release

ROOT = Path(__file__).parents[2]

GOOD = Facts(
    world="native",
    versions={"torch": "2.13.0", "torch-neuronx": "2.13.3.0", "nki": "0.7.0", "neuronx-cc": "2.28.7631.0"},
    environ={},
    devices=("/dev/neuron0",),
    chip="trn2",
    python=(3, 12),
)
XLA = {"torch": "2.9.0", "torch-neuronx": "2.9.0.2.15.32035", "nki": "0.6.0", "neuronx-cc": "2.27.5334.0"}


def _changed(**changes):
    return Facts(**{**vars(GOOD), **changes})


def _versions(**changes):
    return {**GOOD.versions, **{name.replace("_", "-"): value for name, value in changes.items()}}


BAD = {
    "_torch_family": _changed(versions=_versions(torch="2.14.0")),
    "_native_with_torch_xla": _changed(versions=_versions(torch_xla="2.9.0")),
    "_native_python": _changed(python=(3, 11)),
    "_native_chip": _changed(chip="trn1"),
    "_first_generation": _changed(world="xla", versions=XLA, python=(3, 11), chip="trn1"),
    "_native_system": _changed(versions=_versions(system="ubuntu 24.04")),
    "_islpy": _changed(world="xla", versions={**XLA, "islpy": "2026.2.1"}),
    "_numpy": _changed(versions=_versions(numpy="1.26.4")),
    "_path": _changed(hidden_programs=("neuronx-cc",)),
    "_other_venv": _changed(foreign_programs=("/opt/xla/bin/neuronx-cc",)),
    "_xla_with_newer_compiler": _changed(world="xla", versions={**XLA, "nki": "0.7.0"}),
    "_native_with_older_compiler": _changed(versions=_versions(nki="0.6.0", neuronx_cc="2.27.5334.0")),
    "_xla_python": _changed(world="xla", versions=XLA, python=(3, 14)),
    "_xla_pair": _changed(world="xla", versions={**XLA, "torch-xla": "2.8.1"}),
    "_nki_too_old": _changed(world="none", versions=_versions(nki="0.2.9")),
    "_lite": _changed(versions=_versions(libtorch_neuronx_lite="0.1")),
    "_trace_cache": _changed(environ={"NKI_ENABLE_TRACE_CACHE": "1"}),
    "_simulator_hides_device": _changed(environ={"NKI_SIMULATOR": "1"}),
    "_wrapper_flags": _changed(environ={"NEURON_CC_FLAGS": "-O1 --cache_dir=/x"}),
    "_silent_eager": _changed(environ={"TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION": "0"}),
    "_sdpa_rewrite_off": _changed(environ={"TORCH_NEURONX_ENABLE_NKI_SDPA": "0"}),
    "_profiled": _changed(environ={"NEURON_RT_INSPECT_ENABLE": "1"}),
    "_two_variables": _changed(environ={"NEURON_RT_VISIBLE_CORES": "0", "NEURON_RT_NUM_CORES": "1"}),
}


def test_documented_combinations_raise_no_finding():
    assert findings(GOOD) == []
    assert findings(_changed(world="xla", versions={**XLA, "islpy": "2026.1", "numpy": "2.3.1"}, python=(3, 11))) == []
    assert findings(_changed(versions=_versions(system="ubuntu 26.04", islpy="2026.2", numpy="2.2.0"))) == []
    assert findings(_changed(versions=_versions(system="debian 13"))) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_each_bad_combination_is_found_by_its_rule_alone(rule):
    facts = BAD[rule.__name__]
    assert rule(facts)
    assert findings(facts) == [rule(facts)]


def test_release_numbers():
    assert release("2.13.3.0+cpu") == (2, 13, 3, 0)
    assert release(None) == release("unknown") == ()


def test_front_end_by_version():
    assert [front_end(v, None) for v in ("0.6.0", "0.7.0", "0.10.1", None)] == ["parser", "tracer", "tracer", "unknown"]
    assert front_end("0.7.0", "custom").startswith("parser")
    assert [front_end(v, "tracer") for v in ("0.5.0", "0.6.0", "0.7.0")] == [
        "parser",
        "tracer (NKI_COMPILER_FRONTEND=tracer)",
        "tracer",
    ]


def _bare_host(**changes):
    def nothing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    defaults = {
        "import_module": nothing,
        "version": lambda name: None,
        "environ": {},
        "glob": lambda pattern: [],
        "run": lambda command: None,
    }
    return Host(**{**defaults, **changes})


def test_report_on_a_machine_with_nothing_at_all():
    found = report(_bare_host())
    assert found.facts["world"] == "none"
    assert found.facts["neuron kernels"] == "cannot be launched"
    assert found.facts["lnc"] == "unknown"
    assert found.facts["torch"] == "missing"
    assert "50 ms of host time" in found.facts["eager calls"]
    assert [problem.split()[0] for problem in found.problems] == ["numpy", "torch_neuronx", "nki"]
    assert "transformers cannot be imported" in " ".join([*map(str, found.facts.values()), *found.lines()])


@pytest.mark.parametrize(("tables", "words"), [(("attention",), "attention only"), ((), "not registered")])
def test_report_warns_when_only_one_table_of_transformers_knows_the_name(tables, words):
    def import_module(name):
        if name.startswith("transformers."):
            return SimpleNamespace(
                ALL_ATTENTION_FUNCTIONS={"nki": 1} if "attention" in tables else {},
                ALL_MASK_ATTENTION_FUNCTIONS={"nki": 1} if "mask" in tables else {},
            )
        raise ModuleNotFoundError(name)

    found = report(_bare_host(import_module=import_module))
    assert words in found.facts["attn_implementation"]
    assert any("register()" in problem for problem in found.problems)


def test_report_of_a_working_device():
    nki = ModuleType("nki")
    nki.jit = object()
    native = ModuleType("torch_neuronx")
    native.nki_op, native.utils = object(), SimpleNamespace(get_logical_neuron_cores=lambda: "2")
    known = {"nki": nki, "nki.isa": ModuleType("nki.isa"), "torch_neuronx": native}

    def import_module(name):
        if name in known:
            return known[name]
        raise ModuleNotFoundError(name)

    host = _bare_host(
        import_module=import_module,
        version={"nki": "0.7.0", "torch": "2.13.0", "torch-neuronx": "2.13.3.0"}.get,
        glob=lambda pattern: ["/dev/neuron0"],
        run=lambda command: "instance-type: trn2.3xlarge\nlogical-neuroncore-config: 2\n",
        environ={"NEURON_RT_NUM_CORES": "1", "HOME": "/root"},
    )
    facts = report(host).facts
    assert "50 ms of host time" in facts["eager calls"]
    assert "torch.compile" in facts["eager calls"]
    assert facts["continuous batching"].startswith("no: transformers is missing")
    assert facts["neuron kernels"] == "can be launched"
    assert (facts["world"], facts["nki front end"], facts["devices"]) == ("native", "tracer", "/dev/neuron0")
    assert facts["lnc"] == "2 (torch_neuronx.utils.get_logical_neuron_cores())"
    assert facts["instance"] == "trn2.3xlarge"
    assert facts["variables"] == {"NEURON_RT_NUM_CORES": "1"}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"NEURON_CC_FLAGS": "--cache_dir='/x"}, "cannot be split into words"),
        ({"NEURON_CC_FLAGS": "--lnc=2", "NEURON_LOGICAL_NC_CONFIG": "1"}, "LNC differs between"),
        ({"NEURON_LOGICAL_NC_CONFIG": "3"}, "must be 1 or 2"),
        ({"NEURON_LOGICAL_NC_CONFIG": "2", "NKI_SIMULATOR": "1"}, "NKI_SIMULATOR=1"),
    ],
)
def test_no_kernel_can_be_launched_where_a_launch_would_refuse(environ, words):
    native, nki = ModuleType("torch_neuronx"), ModuleType("nki")
    native.nki_op = nki.jit = object()
    known = {"nki": nki, "nki.isa": ModuleType("nki.isa"), "torch_neuronx": native}
    environ = {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn2", **environ}
    host = _bare_host(import_module=known.__getitem__, environ=environ, glob=lambda pattern: ["/dev/neuron0"])
    found = report(host)
    assert found.facts["neuron kernels"] == "cannot be launched"
    assert sum(words in problem for problem in found.problems) == 1
    assert found.lines()


def test_verb_prints_json_and_text():
    done = CliRunner().invoke(app, ["env", "--json"])
    assert json.loads(done.stdout)["facts"]["nki_hf"]
    assert "to look at" in CliRunner().invoke(app, ["env"]).stdout


MISSING = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"
NO_DEVICE = "raise RuntimeError('Failed to get Neuron instance information\\nTraceback of the driver')"
MACHINES = {
    "no transformers": ({"transformers": MISSING}, "not registered: transformers cannot be imported"),
    "no torch": ({"torch": MISSING}, "not registered: transformers cannot be imported"),
    "a torch that lacks its library, and no transformers": (
        {"torch": "raise OSError('libtorch_cpu.so: cannot open shared object file')", "transformers": MISSING},
        "not registered: transformers cannot be imported",
    ),
    "a container without the device": ({"torch_neuronx": NO_DEVICE, "transformers": MISSING}, "--device /dev/neuron0"),
    "a native build for another torch": (
        {"torch_neuronx": "raise RuntimeError('undefined symbol: _ZN3c10')", "transformers": MISSING},
        "importing torch_neuronx failed: undefined symbol: _ZN3c10",
    ),
    "placeholders": ({"torch_neuronx": "", "nki": "", "transformers": MISSING}, "it is the placeholder of the public index"),
    "a NumPy for another system": (
        {"numpy": "raise ImportError('numpy._core.multiarray failed to import')", "transformers": MISSING},
        "numpy cannot be imported (numpy._core.multiarray failed to import)",
    ),
    "a package that ends the process": (
        {"torch_neuronx": "import sys; sys.exit(3)", "transformers": MISSING},
        "importing torch_neuronx failed: SystemExit: 3",
    ),
    "an nki that crashes": ({"nki": "import ctypes; ctypes.CDLL('libnrt.so.1')", "transformers": MISSING}, "libnrt.so.1"),
}
"""Machine -> modules that stand before the installed ones, and words of the report."""


@pytest.mark.parametrize("machine", MACHINES)
def test_the_verb_reports_and_ends_with_0_on_a_machine_where_something_is_missing(machine, tmp_path):
    modules, words = MACHINES[machine]
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(source)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NEURON_", "NKI_"))}
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "nki_hf", "env"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert words in done.stdout
    facts = dict(line.split("  ", 1) for line in done.stdout.splitlines() if "  " in line)
    assert (facts["world"].strip(), facts["neuron kernels"].strip()) == ("none", "cannot be launched")


@pytest.mark.parametrize(
    ("path", "hidden", "foreign"),
    [
        ("/usr/bin", ("neuronx-cc",), ()),
        ("{own}", (), ()),
        ("{own}:/opt/xla/bin", (), ()),
        ("/usr/bin:/opt/xla/bin:{own}", (), ("/opt/xla/bin/neuronx-cc",)),
        ("/opt/xla/bin", (), ("/opt/xla/bin/neuronx-cc",)),
        ("", ("neuronx-cc",), ()),
    ],
)
def test_programs_of_a_venv_that_is_not_activated_are_seen_and_those_of_another(path, hidden, foreign):
    own = str(Path(sys.executable).parent)
    there = (os.path.join(own, "neuronx-cc"), "/opt/xla/bin/neuronx-cc")
    host = _bare_host(environ={"PATH": path.format(own=own)}, glob=lambda pattern: [pattern] if pattern in there else [])
    assert _programs(host) == (hidden, foreign)


def test_a_link_on_path_to_the_program_beside_this_python_is_that_program(tmp_path, monkeypatch):
    own, shared = tmp_path / "venv", tmp_path / "shared"
    for folder in (own, shared):
        folder.mkdir()
    (own / "neuronx-cc").touch()
    (shared / "neuronx-cc").symlink_to(own / "neuronx-cc")
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    assert _programs(Host(environ={"PATH": str(shared)})) == ((), ())


def test_an_import_that_starts_a_program_off_path_says_so():
    def import_module(name):
        raise FileNotFoundError(2, "No such file or directory", "libneuronpjrt-path")

    found = report(_bare_host(import_module=import_module))
    assert any("libneuronpjrt-path" in problem and "activate the venv" in problem for problem in found.problems)


@pytest.mark.parametrize("missing", ["/etc/neuron/conf.json", "neff/model.json", None])
def test_a_file_that_is_missing_is_no_program_off_path(missing):
    def import_module(name):
        raise FileNotFoundError(2, "No such file or directory", missing)

    found = report(_bare_host(import_module=import_module))
    assert any("importing torch_neuronx failed" in problem for problem in found.problems)
    assert not any("activate the venv" in problem for problem in found.problems)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"Metadata-Version: 2.1\nName: neuronx-cc\n", b""])
def test_metadata_that_cannot_be_read_is_a_missing_version(text, tmp_path, monkeypatch):
    folder = tmp_path / "neuronx_cc-2.27.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_bytes(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Host().version("neuronx-cc") is None
