"""The kernel lint: each rule finds its own offence and nothing in a clean kernel; all our kernels pass for NKI 0.3 to 0.7."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.kernel_lint import RULES, VERSIONS, lint, lint_source
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

PSUM = "bank = nl.ndarray((1, 8), nl.float32, nl.psum)\n    "

BODIES = {
    "identity": "ok = scale is None",
    "generator": "ok = sum(i for i in range(3))",
    "comprehension": "ok = [[0 for _ in range(2)] for _ in range(2)]",
    "lambda": "ok = lambda i: i",
    "try-with": "try:\n        pass\n    except ValueError:\n        pass",
    "while": "while scale:\n        pass",
    "nested-import": "import math",
    "wide-integer": "ok = 2147483648",
    "dict-key": "ok = {1: 2}",
    "kernel-in-kernel": "kernel(x)",
    "environment": "ok = os.environ['X']",
    "positional": "nisa.memset(tile, 0.0)",
    "result-used": "ok = nisa.memset(dst=tile, value=0.0)",
    "raw-enum": "nisa.tensor_copy(dst=tile, src=tile, engine=1)",
    "string-buffer": "ok = nl.ndarray((1, 1), dtype=nl.float32, buffer='sbuf')",
    "integer-fill": "nisa.memset(dst=tile, value=0)",
    "view-method": "ok = tile.permute((1, 0))",
    "psum-in-dma": "bank = nl.ndarray((1, 8), dtype=nl.float32, buffer=nl.psum)\n    nisa.dma_copy(dst=out, src=bank[0:1])",
    "removed-argument": "nisa.dma_copy(dst=out, src=tile, dst_rmw_op=nl.add)",
    "new-in-0.4": "ok = nl.tile_size.psum_bank_fmax",
    "new-in-0.5": "ok = nl.float8_e8m0fnu",
    "new-in-0.6": "nl.fori_loop(0, 2, part)",
    "new-in-0.7": "ok = nl.NkiScalar",
    "gone-in-0.3": "ok = nl.arange(4)",
    "gone-in-0.4": "nisa.tensor_copy_dynamic_src(dst=tile, src=tile)",
    "gone-in-0.7": "for i in nl.dynamic_range(4):\n        pass",
    "deprecated": "ok = nl.tile_size.psum_fmax",
}

SOURCES = {
    **{rule: CLEAN.replace("# BODY", body) for rule, body in BODIES.items()},
    "keyword-only": CLEAN.replace("scale=1.0, shape", "*, scale=1.0, shape"),
    "variadic": CLEAN.replace("shape=(1, 2)", "**shape"),
    "list-argument": CLEAN.replace("(1, 2)", "[1, 2]"),
    "inheritance": CLEAN + "\n\nclass Config(Base):\n    pass\n",
    "changing-global": CLEAN.replace("TILE = 128", "TILE = [128]"),
    "output-buffer": CLEAN.replace("nl.shared_hbm", "nl.hbm"),
    "input-returned": CLEAN.replace("return out", "return x"),
    "old-namespace": "import neuronxcc.nki.language\n" + CLEAN,
    "compile-config": CLEAN.replace("@nki.jit", "@nki.jit(compile_config=CONFIG)"),
    "jit-arguments": CLEAN.replace("@nki.jit", "@nki.jit(mode='trace')"),
}


def test_clean_kernel_has_no_finding():
    assert lint_source(CLEAN) == []


def test_each_rule_has_a_case():
    assert set(SOURCES) == set(RULES)


@pytest.mark.parametrize("rule", sorted(SOURCES))
def test_each_offence_is_found_by_its_rule_alone(rule):
    assert SOURCES[rule] != CLEAN
    findings = lint_source(SOURCES[rule])
    assert {finding.rule for finding in findings} == {rule}
    assert all(finding.line > 0 and finding.message for finding in findings)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (CLEAN.replace("return out", "return out[0]").replace("nl.shared_hbm", "nl.sbuf"), "output-buffer"),
        (CLEAN.replace("return out", "return (out, tile)"), "output-buffer"),
        (CLEAN.replace("    return out\n", ""), "output-buffer"),
        (CLEAN.replace("# BODY", "global TILE"), "changing-global"),
        (CLEAN.replace("TILE = 128", "TILE = 128\nTILE = 64"), "changing-global"),
        (CLEAN.replace("# BODY", "ok = {i: 1 for i in range(2)}"), "comprehension"),
        (CLEAN.replace("# BODY", "with open('f'):\n        pass"), "try-with"),
        (CLEAN.replace("# BODY", "yield scale"), "generator"),
        (CLEAN.replace("# BODY", "nisa.memset(dst=tile, value=0.0, mask=scale)"), "removed-argument"),
        (CLEAN.replace("# BODY", "nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op='add')"), "raw-enum"),
        (CLEAN.replace("shape=(1, 2)", "shape: list = (1, 2)"), "list-argument"),
        (CLEAN.replace("    return out", "    same = x\n    return same"), "input-returned"),
        (CLEAN.replace("# BODY", f"{PSUM}nisa.dma_copy(dst=out, src=bank)"), "psum-in-dma"),
        (
            CLEAN.replace("# BODY", f"{PSUM}view = bank[0:1]\n    half = view[:, 0:4]\n    nisa.dma_copy(dst=out, src=half)"),
            "psum-in-dma",
        ),
        (CLEAN.replace("# BODY", f"{PSUM}nisa.dma_compute(dst=out, srcs=[tile, bank])"), "psum-in-dma"),
        (CLEAN.replace("dtype=nl.float32, buffer=nl.shared_hbm", "nl.float32, nl.hbm"), "output-buffer"),
        (CLEAN.replace("# BODY", "isa.memset(tile, 0.0)") + "\nimport nki.isa as isa\n", "positional"),
        (CLEAN.replace("# BODY", "memset(tile, 0.0)") + "\nfrom nki.isa import memset\n", "positional"),
        (CLEAN.replace("# BODY", "wipe(tile, 0.0)") + "\nfrom nki.isa import memset as wipe\n", "positional"),
        (CLEAN.replace("# BODY", "isa.memset(tile, 0.0)") + "\nfrom nki import isa\n", "positional"),
        (CLEAN.replace("# BODY", "nki.isa.memset(tile, 0.0)") + "\nimport nki.isa\n", "positional"),
        (CLEAN.replace("# BODY", "ok = L.arange(4)") + "\nimport nki.language as L\n", "gone-in-0.3"),
        (CLEAN.replace("# BODY", "ok = arange(4)") + "\nfrom nki.language import arange\n", "gone-in-0.3"),
        (CLEAN.replace("def part(tile):", "def part(tile, *, n=1):"), "keyword-only"),
    ],
)
def test_other_forms_of_an_offence(source, rule):
    assert rule in {finding.rule for finding in lint_source(source)}


def test_what_the_language_guide_allows_is_not_found():
    body = "ok = [0 for _ in range(3)]\n    with nl.no_reorder():\n        part(tile)\n    v = nisa.get_nc_version()"
    assert lint_source(CLEAN.replace("# BODY", body)) == []


def test_documented_forms_are_not_found():
    positional = CLEAN.replace("dtype=nl.float32, buffer=nl.shared_hbm", "nl.float32, nl.shared_hbm")
    assert positional != CLEAN
    assert lint_source(positional) == []
    assert lint_source(CLEAN.replace("# BODY", "rows = x.shape[0]\n    pair = (rows, rows)")) == []
    found = lint_source(CLEAN.replace("@nki.jit", "@nki.jit(compile_config=CONFIG)"))
    assert {finding.rule for finding in found} == {"compile-config"}
    assert RULES["compile-config"].versions == ("0.3", "0.4", "0.5", "0.6")


def test_rules_of_the_parser_do_not_count_for_the_tracer(tmp_path):
    (tmp_path / "a.py").write_text(SOURCES["identity"])
    (tmp_path / "b.py").write_text(SOURCES["gone-in-0.7"])
    (tmp_path / "plain.py").write_text("def f(*, x):\n    return x is None\n")
    rows = {row.file: row for row in lint(tmp_path)}
    assert set(rows) == {"a.py", "b.py"}
    assert [bool(rows["a.py"].findings[v]) for v in VERSIONS] == [True] * 4 + [False]
    assert [bool(rows["b.py"].findings[v]) for v in VERSIONS] == [False] * 4 + [True]


def test_all_our_kernels_pass_for_every_version():
    rows = lint()
    assert "flash_prefill.py" in {row.file for row in rows}
    assert [finding for row in rows for found in row.findings.values() for finding in found] == []


def test_the_table_in_the_documentation_is_current():
    page = (Path(__file__).parent.parent / "docs" / "trainium.md").read_text()
    assert markdown(lint()) in page, "run `nki_hf lint --markdown` and paste its table into docs/trainium.md"


def test_verb_reports_and_exits_by_result(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(SOURCES["identity"])
    done = CliRunner().invoke(app, ["lint", str(bad)])
    assert done.exit_code == 1
    assert "bad.py:17: identity: `scale is None`" in done.stdout
    assert CliRunner().invoke(app, ["lint", str(bad), "--version", "0.7"]).exit_code == 0
    assert CliRunner().invoke(app, ["lint", str(bad), "--version", "0.9"]).exit_code == 2
    assert CliRunner().invoke(app, ["lint", str(tmp_path / "none.py")]).exit_code == 2
    done = CliRunner().invoke(app, ["lint", str(bad), "--json"])
    assert json.loads(done.stdout)[0]["findings"]["0.3"][0]["rule"] == "identity"


def test_verify_lints_too(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text(SOURCES["identity"])
    assert CliRunner().invoke(app, ["verify", f"{bad}:kernel", "--lint"]).exit_code == 1
    assert CliRunner().invoke(app, ["verify", "--lint"]).exit_code == 0
    assert "PATH:KERNEL, or --lint" in CliRunner().invoke(app, ["verify"]).output
