"""The kernel lint: which files and functions it looks at, its table, its verb; all our kernels pass for NKI 0.3 to 0.7."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.kernel_lint import VERSIONS, lint, lint_source
from nki_hf.tools.lint import markdown

CLEAN = '''
from nki_hf.lang import nisa, nki, nl

TILE = 128


def part(tile):
    nisa.memset(dst=tile, value=0.0)


@nki.jit
def kernel(x, scale=1.0, shape=(1, 2)):
    """Doc."""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((TILE, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    # BODY
    nisa.dma_copy(dst=out, src=tile)
    return out
'''

IDENTITY = CLEAN.replace("# BODY", "ok = scale is shape")
DYNAMIC = CLEAN.replace("# BODY", "for i in nl.dynamic_range(4):\n        pass")


def test_rules_of_the_parser_do_not_count_for_the_tracer(tmp_path):
    (tmp_path / "a.py").write_text(IDENTITY)
    (tmp_path / "b.py").write_text(DYNAMIC)
    (tmp_path / "plain.py").write_text("def f(*, x):\n    return x is None\n")
    rows = {row.file: row for row in lint(tmp_path)}
    assert set(rows) == {"a.py", "b.py"}
    assert [bool(rows["a.py"].findings[v]) for v in VERSIONS] == [True] * 4 + [False, False]
    assert [bool(rows["b.py"].findings[v]) for v in VERSIONS] == [False] * 5 + [True]


def test_helpers_in_other_modules_are_kernel_code_too(tmp_path):
    (tmp_path / "parts").mkdir()
    parts = "def steps(n):\n    return [i for i in range(n) if n is not None]\n\n\ndef untouched(*, n):\n    return n is None\n"
    (tmp_path / "parts" / "loops.py").write_text(parts)
    evict = "import nki.isa as nisa\n\n\ndef evict(out, tile):\n    nisa.dma_copy(dst=out, src=tile)\n"
    (tmp_path / "parts" / "moves.py").write_text(evict)
    kernel = CLEAN.replace("TILE = 128", "from parts.loops import steps\nfrom parts import moves\n\nTILE = 128")
    kernel = kernel.replace(
        "# BODY", "ok = steps(3)\n    bank = nl.ndarray((1, 8), nl.float32, nl.psum)\n    moves.evict(out, bank)"
    )
    (tmp_path / "kernel.py").write_text(kernel)
    found = {row.file: {(item.line, item.rule) for item in row.findings["0.3"]} for row in lint(tmp_path / "kernel.py")}
    assert found == {
        "kernel.py": set(),
        "parts/loops.py": {(2, "identity-of-none"), (2, "comprehension")},
        "parts/moves.py": {(5, "psum-in-dma")},
    }


def test_tiles_are_followed_through_results_attributes_and_parameters(tmp_path):
    source = CLEAN.replace(
        "# BODY", "state = State(make())\n    one, two = both(tile)\n    drop(out, state.bank)\n    drop(out, two)"
    )
    source += """

class State(nl.NKIObject):
    def __init__(self, bank):
        self.bank = bank


def make():
    bank = nl.ndarray((1, 8), nl.float32, nl.psum)
    return bank[0:1]


def both(tile):
    return tile, make()


def drop(out, tile):
    nisa.dma_copy(dst=out, src=tile)


def keep(out, tile):
    nisa.dma_copy(dst=out, src=tile)
"""
    found = [finding for finding in lint_source(source) if finding.rule == "psum-in-dma"]
    assert [source.splitlines()[finding.line - 2] for finding in found] == ["def drop(out, tile):"]


def test_a_file_that_is_not_python_is_a_finding(tmp_path):
    (tmp_path / "parts.py").write_text("def f(:\n")
    (tmp_path / "kernel.py").write_text(CLEAN.replace("TILE = 128", "from parts import f").replace("TILE", "f"))
    for path in (tmp_path, tmp_path / "kernel.py"):
        (broken,) = [row for row in lint(path) if row.file == "parts.py"]
        assert [(found.line, found.rule) for found in broken.findings["0.7"]] == [(1, "syntax")]
    with pytest.raises(SyntaxError):
        lint_source("def f(:")


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n# caf\xe9\n"])
def test_what_python_reads_is_read(tmp_path, head):
    """A byte order mark and a coding line are Python: NKI's front ends get the source from Python's inspect."""
    (tmp_path / "kernel.py").write_bytes(head + CLEAN.encode())
    (row,) = lint(tmp_path)
    assert row.kernels == ("kernel",)
    assert row.clean
    (tmp_path / "kernel.py").write_bytes(b"# caf\xe9\n" + CLEAN.encode())
    (row,) = lint(tmp_path)
    assert {finding.rule for found in row.findings.values() for finding in found} == {"syntax"}


def test_the_shared_parts_of_our_kernels_are_looked_at():
    assert {"flash_prefill/kernel.py", "flash_prefill/steps.py"} <= {row.file for row in lint()}


def test_all_our_kernels_pass_for_every_version():
    rows = lint()
    assert "flash_prefill/kernel.py" in {row.file for row in rows}
    assert [finding for row in rows for found in row.findings.values() for finding in found] == []


def test_the_table_in_the_documentation_is_current():
    page = (Path(__file__).parents[2] / "docs" / "trainium.md").read_text()
    assert markdown(lint()) in page, "run `nki_hf lint --markdown` and paste its table into docs/trainium.md"


def test_verb_reports_and_exits_by_result(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(IDENTITY)
    done = CliRunner().invoke(app, ["lint", str(bad)])
    assert done.exit_code == 1
    assert "bad.py:17: identity: `scale is shape`" in done.stdout
    assert CliRunner().invoke(app, ["lint", str(bad), "--version", "0.7"]).exit_code == 0
    assert CliRunner().invoke(app, ["lint", str(bad), "--version", "0.9"]).exit_code == 2
    assert CliRunner().invoke(app, ["lint", str(tmp_path / "none.py")]).exit_code == 2
    clean = tmp_path / "clean.py"
    clean.write_text(CLEAN)
    said = " ".join(CliRunner().invoke(app, ["lint", str(clean)]).stdout.split())
    assert "1 of 1 modules break none of" in said
    assert "not refused by what is public" in said
    done = CliRunner().invoke(app, ["lint", str(bad), "--json"])
    assert json.loads(done.stdout)[0]["findings"]["0.3"][0]["rule"] == "identity"


def test_a_file_without_a_kernel_is_no_pass(tmp_path):
    plain = tmp_path / "plain.py"
    plain.write_text("def f(x):\n    return x\n")
    done = CliRunner().invoke(app, ["lint", str(plain)])
    assert done.exit_code == 2
    assert "has no kernel code" in done.output


def test_a_kernel_of_the_old_language_is_told_so(tmp_path):
    old = tmp_path / "old.py"
    old.write_text(
        "import neuronxcc.nki as nki\nimport neuronxcc.nki.language as nl\n\n\n@nki.jit\ndef kernel(x):\n"
        "    i = nl.arange(128)[:, None]\n    tile = nl.load(x[i], mask=(i < 100))\n    nl.store(x[i], value=tile)\n"
    )
    done = CliRunner().invoke(app, ["lint", str(old)])
    assert done.exit_code == 1
    (row,) = lint(old)
    assert all({"gone-in-0.3", "removed-argument"} <= {found.rule for found in row.findings[version]} for version in VERSIONS)
    assert "old-namespace" in {found.rule for found in row.findings["0.7"]}


def test_verify_lints_too(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(IDENTITY)
    assert CliRunner().invoke(app, ["verify", f"{bad}:kernel", "--lint"]).exit_code == 1
    assert CliRunner().invoke(app, ["verify", "--lint"]).exit_code == 0
    assert "PATH:KERNEL, or --lint" in CliRunner().invoke(app, ["verify"]).output
