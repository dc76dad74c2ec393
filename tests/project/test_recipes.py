"""The recipes of CONTRIBUTING.md, each followed in a copy of the project with a toy: the listed files, then the command.

What drives a second kernel is tests/kernels/test_second_kernel.py; here it is added to the package itself.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nki_hf.kernels import registry

pytestmark = pytest.mark.timeout(3000)  # whole runs of pytest in a copy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", PAGE.partition("## Recipes")[2], re.DOTALL | re.MULTILINE))

CHIP = '''"""A toy."""
from nki_hf.chips.chip import Chip
from nki_hf.chips.trn3 import TRN3

TOY = Chip(name="toy", generation=4, default_lnc=2, params=dict(TRN3))
'''
RULE = """

@rule("memset", "argument", "value must not be 13", "a toy for a test")
def _thirteen(o: Operands) -> Violation:
    return f"value={o.value}" if o.value == 13 else None
"""
INSTRUCTION = '''

def inverse(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """`dst = 1 / data` in float32."""
    this = begin("inverse", dst=dst, data=data)
    action = _chain(dst, data, OPERATORS["reciprocal"].compute, None) if this.values else None
    return this.issue(engine="vector", reads=(data,), writes=(dst,), action=action)
'''
CHECK = """

@check("inverse")
def inverse(data):
    operands = {
        "dst": operand(data, 4, (8,), "float32", reads=False),
        "data": operand(data, 4, (8,), "float32", fill=uniform(0.25, 4)),
    }
    run(data, lambda dst, data: nisa.inverse(dst=dst, data=data), operands, lambda: {"dst": 1 / operands["data"].values})
"""

KERNEL_TEST = """import torch

import nki_hf


def test_values():
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, rows, 32, generator=draw) for heads, rows in ((6, 40), (2, 200), (2, 200)))
    found = nki_hf.attention(q, k, v)
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)
    assert [row.first.kernel for row in nki_hf.explain().rows] == ["toy"]
"""


class Copy:
    """A copy of the project in which a recipe is followed; only the files that the recipe lists may be touched."""

    def __init__(self, folder, recipe):
        self.folder, self.text, self.touched = folder, RECIPES[recipe], set()
        ignored = shutil.ignore_patterns("__pycache__", "*_cache")
        for name in ("nki_hf", "tests", "tools", "docs", "examples"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
            shutil.copy(ROOT / name, folder)
        self.listed = re.findall(r"`((?:nki_hf|tests|docs)/[\w./]+\.(?:py|md))`", self.text)

    def _path(self, name):
        placeholder = re.sub(r"toy", "NAME", name)
        assert name in self.listed or placeholder in self.listed, f"the recipe does not list {name}"
        self.touched.add(name if name in self.listed else placeholder)
        return self.folder / name

    def add(self, name, text):
        """A new file, or `text` at the end of one that exists."""
        path = self._path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + text)

    def change(self, name, old, new):
        """`new` in the only place of `old`."""
        path = self._path(name)
        source = path.read_text()
        assert source.count(old) == 1, (name, old)
        path.write_text(source.replace(old, new))

    def write_pages(self):
        """Run the commands of the list that write a page."""
        for command, page in re.findall(r"`python (-m [\w. -]+?) > ([\w./]+)`", self.text):
            self._path(page).write_text(self.output(*shlex.split(command)))

    def command(self, *chosen):
        """Run the command that tells whether the recipe is complete."""
        (line,) = re.findall(r"^    python (-m pytest .*)$", self.text, re.MULTILINE)
        return self._python(*shlex.split(line.replace("NAME", "toy")), "-q", "-p", "no:cacheprovider", *chosen)

    def output(self, *arguments):
        """What Python prints in the copy."""
        done = self._python(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _python(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        return subprocess.run([sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True)


def test_every_recipe_lists_files_that_exist_and_one_command():
    assert set(RECIPES) == {f"Add {what}" for what in ("a kernel", "a chip", "a rule", "an instruction", "a model's quirk")}
    for recipe, text in RECIPES.items():
        for path in re.findall(r"`((?:nki_hf|tests|docs|tools)/[\w./]+)`", text):
            known = path.replace("NAME", "flash_prefill" if "kernel" in recipe else "trn2")
            assert (ROOT / known).exists(), (recipe, path)
        (command,) = re.findall(r"^    python -m pytest (.*)$", text, re.MULTILINE)
        assert all((ROOT / path.replace("NAME", "flash_prefill")).exists() for path in command.split()), command


@pytest.mark.slow  # two runs of pytest in the copy
def test_a_kernel(tmp_path):
    copy, source = Copy(tmp_path, "Add a kernel"), ROOT / "tests" / "support" / "flash_small"
    tables = copy.output("-m", "nki_hf", "lint", "--markdown")
    for name in ("__init__.py", "kernel.py", "call.py"):
        copy.add(f"nki_hf/kernels/toy/{name}", (source / name).read_text().replace("flash_small", "toy"))
    last = f'    "nki_hf.kernels.{registry.PACKAGES[-1].rpartition(".")[2]}",\n'
    copy.change("nki_hf/kernels/registry.py", last, f'{last}    "nki_hf.kernels.toy",\n')
    without_test = copy.command("-k", "is_current")
    assert without_test.returncode == 4, without_test.stdout  # the file is not there
    copy.add("tests/kernels/test_toy.py", KERNEL_TEST)
    asked = "is_current", "pass_for_every_version", "restates", "contradictions", "plain_verify", "bench_has", "lengths_shown"
    chosen = "-k", " or ".join(asked)
    incomplete = copy.command(*chosen)
    assert incomplete.returncode == 1, incomplete.stdout
    assert "test_the_table_in_the_documentation_is_current" in incomplete.stdout
    copy.change("docs/trainium.md", tables.strip(), copy.output("-m", "nki_hf", "lint", "--markdown").strip())
    copy.write_pages()
    done = copy.command(*chosen)
    assert done.returncode == 0, done.stdout
    copy.output("-m", "pytest", "tests/kernels/test_toy.py", "-q", "-p", "no:cacheprovider")
    (verify,) = re.findall(r"`python (-m nki_hf verify [\w./:]+)`", copy.text)
    assert copy.output(*shlex.split(verify.replace("NAME", "toy"))).rstrip().endswith("PASS")
    assert "kernel: toy\n" in copy.output("-m", "nki_hf", "bench", "--shape", "hq=6,hkv=2,sq=40,skv=200,d=32")
    assert copy.touched == set(copy.listed)


def test_a_chip(tmp_path):
    copy = Copy(tmp_path, "Add a chip")
    copy.add("nki_hf/chips/toy.py", CHIP)
    copy.change(
        "nki_hf/chips/__init__.py", "from nki_hf.chips.trn1", "from nki_hf.chips.toy import TOY\nfrom nki_hf.chips.trn1"
    )
    copy.change("nki_hf/chips/__init__.py", "(TRN1, TRN2, TRN3)}", "(TRN1, TRN2, TRN3, TOY)}")
    incomplete = copy.command()
    assert incomplete.returncode == 1, incomplete.stdout
    assert "test_every_chip_can_be_chosen" in incomplete.stdout
    copy.change("nki_hf/settings.py", '"trn2", "trn3")\n_TRUE', '"trn2", "trn3", "toy")\n_TRUE')
    copy.change("nki_hf/sim/options.py", '"gen4": "trn3"}', '"gen4": "trn3", "toy": "toy"}')
    done = copy.command()
    assert done.returncode == 0, done.stdout
    assert copy.touched == set(copy.listed)


@pytest.mark.slow  # two runs of pytest in the copy
def test_a_rule(tmp_path):
    copy = Copy(tmp_path, "Add a rule")
    copy.add("nki_hf/sim/constraints/vector_engine.py", RULE)
    chosen = "-k", "memset or documented_table or rule_names_its_source"
    incomplete = copy.command(*chosen)
    assert "test_the_documented_table_is_current" in incomplete.stdout
    copy.change(
        "tests/support/constraint_cases.py", "BROKEN = {\n", 'BROKEN = {\n    ("memset", "thirteen"): lambda: {"value": 13},\n'
    )
    copy.write_pages()
    done = copy.command(*chosen)
    assert done.returncode == 0, done.stdout
    assert "memset.thirteen" in done.stdout or "passed" in done.stdout
    assert copy.touched == set(copy.listed)
    assert "value must not be 13" in (tmp_path / "docs/constraints.md").read_text()


@pytest.mark.slow  # two runs of pytest in the copy
def test_an_instruction(tmp_path):
    copy = Copy(tmp_path, "Add an instruction")
    copy.add("nki_hf/sim/isa/elementwise.py", INSTRUCTION)
    copy.change("nki_hf/sim/isa/__init__.py", "import reciprocal, scalar", "import inverse, reciprocal, scalar")
    copy.change("nki_hf/sim/isa/__init__.py", '"gpsimd_engine", "iota"', '"gpsimd_engine", "inverse", "iota"')
    chosen = "-k", "inverse or reciprocal or page or table or has_rules or no_public_name or every_public_name"
    incomplete = copy.command(*chosen)
    assert "test_every_instruction_has_rules" in incomplete.stdout
    copy.change(
        "nki_hf/sim/constraints/instructions.py",
        '    "reciprocal": Instruction(',
        '    "inverse": Instruction(engines=("vector",), equal=("dst", "data")),\n    "reciprocal": Instruction(',
    )
    copy.change(
        "nki_hf/sim/surface/isa.py",
        '    "reciprocal": exact(',
        '    "inverse": exact("(dst, data, name=None)"),\n    "reciprocal": exact(',
    )
    copy.change("tests/sim/test_isa_elementwise.py", '_tensor", "reciprocal")', '_tensor", "reciprocal", "inverse")')
    copy.add("tests/sim/test_isa_elementwise.py", CHECK)
    copy.change("tests/support/constraint_cases.py", "BASE = {\n", 'BASE = {\n    "inverse": lambda: _pair(),\n')
    copy.write_pages()
    done = copy.command(*chosen)
    assert done.returncode == 0, done.stdout
    assert set(copy.listed) - copy.touched == {"nki_hf/timing/costs/vector.py"}  # it costs one element per lane and cycle


@pytest.mark.slow  # two runs of pytest in the copy
def test_a_models_quirk(tmp_path):
    copy = Copy(tmp_path, "Add a model's quirk")
    test = "\n\ndef test_toy_flag():\n    test_harmless_arguments_are_ignored('toy_flag')\n"
    copy.add("tests/adapters/test_adapter.py", test)
    incomplete = copy.command("-k", "toy_flag")
    assert "toy_flag" in incomplete.stdout
    assert incomplete.returncode == 1
    copy.change("nki_hf/adapters/transformers.py", 'PASSED_ALONG | {"num', 'PASSED_ALONG | {"toy_flag", "num')
    done = copy.command("-k", "toy_flag or harmless")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_models_quirk_is_on_the_support_page(tmp_path):
    copy = Copy(tmp_path, "Add a model's quirk")
    copy.change("nki_hf/adapters/transformers.py", 'PASSED_ALONG | {"num', 'PASSED_ALONG | {"toy_flag", "num')
    copy.write_pages()
    done = copy.command("-k", "harmless or support_table_is_current")
    assert done.returncode == 0, done.stdout
