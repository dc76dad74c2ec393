"""What importing the package costs and needs."""

import subprocess
import sys

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
