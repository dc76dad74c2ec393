"""The package as it is installed: wheel contents, plain and editable installs, extras that fail loudly."""

import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACEHOLDERS = {"torch-neuronx": "1.0", "neuronx-cc": "1.0.post1", "nki": "0.0.1"}
"""Versions of the empty packages under those names on the public index."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (path,) = folder.glob("*.whl")
    return path


def _pip(*arguments, python=sys.executable):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python), *arguments]
    # the build back end and pip come from the environment of the tests: nothing is downloaded
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": _site_packages()})
    assert done.returncode == 0, done.stdout + done.stderr


def _site_packages():
    return str(Path(pytest.__file__).parents[1])


def _python(venv, code, cwd):
    """Runs `code` in the virtual environment, away from the source folder, with the core's dependencies and no torch."""
    blocked = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'transformers', 'perfetto', 'matplotlib'):\n"
        "            raise ImportError(name + ' is blocked')\n"
        "sys.meta_path.insert(0, Blocked())\n"
    )
    command = [str(venv / "bin/python"), "-c", blocked + code]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def venv(tmp_path):
    """A fresh virtual environment that sees the dependencies through a path file, after its own packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (own,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (own / "zz_dependencies.pth").write_text(_site_packages() + "\n")
    return tmp_path / "venv"


def test_the_wheel_holds_the_package_its_data_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"nki_hf", wheel.name.split("-py3")[0] + ".dist-info"}
    assert not [name for name in names if "test" in Path(name).name and name != "nki_hf/testing.py"]
    inside = {name for name in names if name.startswith("nki_hf/")}
    tracked = subprocess.run(["git", "ls-files", "nki_hf"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode == 0:  # a source archive has no git
        assert set(tracked.stdout.split()) <= inside
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_metadata_says_licence_and_asks_for_no_torch_in_the_core(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    core = [Requirement(text) for text in metadata.get_all("Requires-Dist") if "extra ==" not in text]
    assert {requirement.name for requirement in core}.isdisjoint({"torch", "transformers", "nki", "torch-neuronx"})


def test_a_plain_install_imports_and_runs_without_torch(venv, wheel, tmp_path):
    _pip("install", "--no-deps", str(wheel), python=venv / "bin/python")
    where = _python(venv, "import nki_hf, nki_hf.sim.language, nki_hf.lang; print(nki_hf.__file__)", tmp_path)
    assert Path(where).is_relative_to(venv)
    program = subprocess.run([venv / "bin/nki_hf", "chip", "trn2"], capture_output=True, text=True, cwd=tmp_path)
    assert program.returncode == 0, program.stderr


def test_an_editable_install_imports_the_source_folder(venv, tmp_path):
    _pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT), python=venv / "bin/python")
    where = _python(venv, "import nki_hf, nki_hf.cli; print(nki_hf.__file__)", tmp_path)
    assert Path(where) == ROOT / "nki_hf" / "__init__.py"


@pytest.mark.parametrize("extra", ["neuron-xla", "neuron-native"])
def test_neuron_extras_cannot_be_met_by_the_public_placeholders(extra):
    requirements = [Requirement(text) for text in PROJECT["optional-dependencies"][extra]]
    real = {"islpy"}  # a package of its own, kept below the version that breaks the compiler
    assert {requirement.name for requirement in requirements} - real <= set(PLACEHOLDERS)
    for requirement in requirements:
        if requirement.name in real:
            continue
        assert Version(PLACEHOLDERS[requirement.name]) not in requirement.specifier, str(requirement)


def test_our_own_runs_pin_torch_and_the_package_does_not():
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().split()
    (torch,) = (Requirement(text) for text in PROJECT["optional-dependencies"]["hf"] if Requirement(text).name == "torch")
    assert {clause.operator for clause in torch.specifier} == {">="}


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
