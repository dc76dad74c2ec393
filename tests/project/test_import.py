"""What importing the package costs and needs."""

import subprocess
import sys

import pytest

_BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('torch', 'transformers', 'perfetto', 'matplotlib'):
            raise ImportError(f'{name} is blocked')
sys.meta_path.insert(0, Blocked())
"""


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_needs_no_torch_or_transformers():
    assert _run(_BLOCKED + "import nki_hf; print(nki_hf.Problem.__name__)").strip() == "Problem"


def test_import_leaves_torch_and_transformers_unloaded():
    out = _run("import sys, nki_hf; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])")
    assert out.strip() == "[]"


def test_simulator_needs_no_torch():
    _run(_BLOCKED + "import nki_hf.sim.language, nki_hf.sim.isa, nki_hf.lang, nki_hf.cli")


def _without(packages: str, code: str) -> subprocess.CompletedProcess[str]:
    absent = f"import sys; sys.modules.update(dict.fromkeys({packages.split()!r}))\n"  # None: as if not installed
    return subprocess.run([sys.executable, "-c", absent + code], capture_output=True, text=True)


def test_every_public_name_works_without_torch_or_says_which_extra_it_needs():
    code = """
import importlib.metadata as metadata
import nki_hf
def missing(name): raise metadata.PackageNotFoundError(name)
metadata.version = missing
uses = {"apply": lambda: nki_hf.apply(None), "register": lambda: nki_hf.register(), "explain": lambda: nki_hf.explain(),
        "checked_batching": lambda: nki_hf.checked_batching()}
for name in nki_hf.__all__:
    try:
        uses.get(name, lambda: getattr(nki_hf, name))()
    except nki_hf.BackendUnavailable as error:
        assert str(error).endswith('pip install "nki_hf[hf]"') and chr(10) not in str(error), error
        print(name)
"""
    done = _without("torch transformers", code)
    assert done.stderr == ""
    assert done.stdout.split() == ["apply", "attention", "checked_batching", "flash_attn", "merge", "register"]


_NO_SIMULATION = """
from nki_hf.tools import trace, report
def simulated(*_, **__): raise AssertionError("simulated before the package was found missing")
trace.model = report.model = simulated
"""


@pytest.mark.parametrize(
    ("missing", "words", "text"),
    [
        ("perfetto", "trace", 'nki_hf trace needs the perfetto package: pip install "nki_hf[trace]"'),
        ("matplotlib", "trace -o x.png", 'nki_hf trace (a picture) needs the matplotlib package: pip install "nki_hf[plot]"'),
        ("torch", "explain", 'nki_hf explain needs the torch package: pip install "nki_hf[hf]"'),
        ("transformers", "explain", 'nki_hf explain needs the transformers package: pip install "nki_hf[hf]"'),
        ("torch", "explain --support", 'nki_hf explain --support needs the torch package: pip install "nki_hf[hf]"'),
    ],
)
def test_a_verb_says_what_is_missing_before_it_works(missing, words, text):
    code = f"sys.argv = ['nki_hf', *{words.split()!r}]\nfrom nki_hf.cli import main\nmain()"
    done = _without(missing, _NO_SIMULATION + code)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", text)


@pytest.mark.parametrize("missing", ["pydantic", "platformdirs", "filelock"])
def test_the_core_works_without_what_the_benchmark_needs_and_the_benchmark_names_it(missing):
    core = "import nki_hf.cli, nki_hf.sim.isa, nki_hf.timing.schedule, nki_hf.tools.verify, nki_hf.tools.report"
    assert _without("pydantic platformdirs filelock", core).stderr == ""
    done = _without(missing, "import nki_hf.tools.model_bench.run")
    said = f'The model benchmark needs the {missing} package: pip install "nki_hf[hf]"'
    assert done.stderr.splitlines()[-1].endswith(said)
