"""`nki_hf verify`: wrong outputs fail with the right verdict, right kernels pass, and exit codes say so."""

import json

import pytest
from verify_call import invoke

from nki_hf.testing import DISTRIBUTIONS

KERNEL = '''
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def attention(q, k, v, fault="none"):
    """q, k [heads, head_dim, 128], v [heads, 128, head_dim] -> out [heads, 128, head_dim]."""
    heads, d, s = q.shape
    out = nl.ndarray((heads, s, d), q.dtype, buffer=nl.shared_hbm)
    for h in range(heads):
        qs = nl.ndarray((d, s), q.dtype, buffer=nl.sbuf)
        ks = nl.ndarray((d, s), k.dtype, buffer=nl.sbuf)
        vs = nl.ndarray((s, d), v.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=qs, src=q[h])
        nisa.dma_copy(dst=ks, src=k[h])
        nisa.dma_copy(dst=vs, src=v[h])
        scores = nl.ndarray((s, s), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=scores, stationary=qs, moving=ks)
        top = nl.ndarray((s, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=1)
        shift = nl.ndarray((s, 1), nl.float32, buffer=nl.sbuf)
        scale = d ** -0.5
        nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-scale)
        if fault == "no maximum":
            nisa.memset(dst=shift, value=0.0)
        probs = nl.ndarray((s, s), nl.bfloat16, buffer=nl.sbuf)
        total = nl.ndarray((s, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=probs, op=nl.exp, data=scores, bias=shift, scale=scale, reduce_op=nl.add, reduce_res=total,
                        reduce_cmd=nisa.reduce_cmd.reset_reduce)
        turned_psum = nl.ndarray((s, s), nl.bfloat16, buffer=nl.psum)
        nisa.nc_transpose(dst=turned_psum, data=probs, engine=nisa.engine.tensor)
        turned = nl.ndarray((s, s), nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_copy(dst=turned, src=turned_psum)
        result = nl.ndarray((s, d), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=result, stationary=turned, moving=vs)
        inverse = nl.ndarray((s, 1), nl.float32, buffer=nl.sbuf)
        nisa.reciprocal(dst=inverse, data=total)
        tile = nl.ndarray((s, d), q.dtype, buffer=nl.sbuf)
        factor = {"zeros": 0.0, "scaled": 1.5}.get(fault, 1.0)
        nisa.tensor_scalar(dst=tile, data=result, op0=nl.multiply, operand0=inverse, op1=nl.multiply, operand1=factor)
        target = {"swapped heads": heads - 1 - h}.get(fault, h)
        rows = s - 3 if fault in ("never written", "too small") else s
        if fault == "race":
            target = 0
        nisa.dma_copy(dst=out[target, 0:rows], src=tile[0:rows])
        if fault == "wide matmul":
            nisa.nc_matmul(dst=scores, stationary=qs, moving=nl.ndarray((d, 600), q.dtype, buffer=nl.sbuf))
    return out


def oracle(q, k, v, fault="none"):
    import numpy as np
    scores = np.einsum("hds,hdt->hst", q, k) * q.shape[1] ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def oracle_of_nothing(q, k, v, fault="none"):
    return 0.0 * v
'''


CALL = ["--shape", "b=1,hq=2,hkv=2,sq=128,skv=128,d=64", "--layout", "q=hds,k=hds,v=hsd,out=hsd"]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "my_kernel.py"
    file.write_text(KERNEL)
    return file


def verdicts(path, fault, *more):
    result = invoke(f"{path}:attention", *CALL, "--const", f"fault={fault}", "--json", "-", *more)
    found = json.loads(result.stdout)
    assert result.exit_code == (0 if found["passed"] else 1)
    return {case["distribution"]: case["verdict"] for case in found["cases"]}, found


def test_a_right_kernel_passes_against_the_oracle_and_against_a_given_reference(path):
    for more in ((), ("--reference", f"{path}:oracle")):
        found, report = verdicts(path, "none", *more)
        assert found == dict.fromkeys(DISTRIBUTIONS, "pass")
        assert report["faults"] == []
        assert {row["space"] for row in report["capacity"]} == {"sbuf", "psum"}


def test_a_file_with_one_kernel_needs_no_name(path):
    result = invoke(path, *CALL)
    assert result.exit_code == 0, result.output
    assert f"running {path} as Python code" in result.output
    path.write_text(KERNEL + "\n\n@nki.jit\ndef other(q, k, v):\n    return q\n")
    result = invoke(path, *CALL)
    assert result.exit_code == 2
    assert "has 2 kernels: name one" in result.output


@pytest.mark.parametrize(
    ("line", "ended", "code"),
    [
        ("import nki\n", "import nki\nimport os\nos._exit(0)\n", 2),  # it cannot be imported
        ("    heads, d, s = q.shape\n", "    import os\n    os._exit(0)\n", 1),  # it ran and fails
        ("    heads, d, s = q.shape\n", "    raise SystemExit(0)\n", 1),
    ],
)
def test_a_kernel_that_ends_the_process_has_not_passed(path, line, ended, code):
    path.write_text(KERNEL.replace(line, ended, 1))
    result = invoke(f"{path}:attention", *CALL)
    assert result.exit_code == code, result.output
    assert "SystemExit" in result.output or "sys.exit(0)" in result.output


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [("zeros", "all zero"), ("scaled", "magnitude"), ("swapped heads", "rows"), ("never written", "never written")],
)
def test_a_wrong_kernel_fails_on_normal_inputs_with_its_own_verdict(path, fault, verdict):
    found, report = verdicts(path, fault)
    assert found["normal"] == verdict
    assert not report["passed"]


def test_mistakes_that_normal_inputs_do_not_show_are_found_by_the_other_distributions(path):
    missing, _ = verdicts(path, "no maximum")
    assert missing["normal"] == "pass"
    assert missing["outlier_key"] == "not finite"


def test_a_broken_rule_of_the_machine_is_reported_with_its_record(path):
    found, report = verdicts(path, "wide matmul")
    assert set(found.values()) == {"fault"}
    (fault,) = report["faults"]
    lines = KERNEL.split("\n")
    assert fault["kind"] == "shape"
    assert fault["instruction"] == "nc_matmul"
    assert fault["line"] == 1 + next(i for i, line in enumerate(lines) if "(d, 600)" in line)
    assert fault["file"] == str(path)
    assert fault["details"]["rule"] == "moving_free"


def test_cores_that_write_the_same_rows_fail_by_the_race(path):
    _, report = verdicts(path, "race", "--lnc", "2")
    assert "race" in {fault["kind"] for fault in report["faults"]}
    assert not report["passed"]


def test_reads_of_never_written_memory_fail_on_request(path):
    text = KERNEL.replace("        nisa.dma_copy(dst=vs, src=v[h])\n", "        nisa.dma_copy(dst=vs[0:64], src=v[h, 0:64])\n")
    path.write_text(text)
    found, _ = verdicts(path, "none")
    assert found["normal"] == "not finite"
    found, report = verdicts(path, "none", "--strict-reads")
    assert found["normal"] == "fault"
    assert report["faults"][0]["kind"] == "uninitialized"


def test_any_kernel_is_verified_against_a_reference_on_described_arrays(tmp_path):
    file = tmp_path / "double.py"
    file.write_text("""
from nki_hf.lang import nisa, nki, nl


@nki.jit
def affine(x, w, shift):
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    scale = nl.ndarray(w.shape, nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=scale, src=w)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=shift)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def right(x, w, shift):
    return x * w + shift


def other(x, w, shift):
    return x * w - shift
""")
    arguments = [f"{file}:affine", "--arg", "x=64x96:float32", "--arg", "w=64x1", "--const", "shift=0.5"]
    assert invoke(*arguments, "--reference", f"{file}:right").exit_code == 0
    assert invoke(*arguments, "--reference", f"{file}:other").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.py:f"], "not a file"),
        (["no_such_module_at_all:f"], "does not exist"),
        (["my_kernel"], "PATH:NAME"),
        (["{path}:missing"], "it has attention, oracle"),
        (["{path}:attention", "--shape", ""], "names no size"),
        (["{path}:attention", "--shape", "b=one"], "not a number"),
        (["{path}:attention", "--shape", "heads=2"], "hq="),
        (["{path}:attention", "--dtype", "int8"], "bfloat16, float16 or float32"),
        (["{path}:attention", "--layout", "q=xyz"], "axes b, h, s, d"),
        (["{path}:attention", "--layout", "q=ds"], "leaves out axis"),
        (["{path}:attention", "--chip", "trn9"], "trn1, trn2, trn3"),
        (["{path}:attention", "--arg", "x=4x4"], "--reference"),
        (["{path}:attention", "--arg", "x=4xq", "--reference", "{path}:oracle"], "NAME=128x512"),
        (["{path}:attention", "--const", "novalue"], "NAME=VALUE"),
    ],
)
def test_wrong_use_ends_with_code_2_and_says_what_is_allowed(path, arguments, words):
    result = invoke(*[text.format(path=path) for text in arguments])
    assert result.exit_code == 2
    assert words in result.stderr


def test_a_reference_that_is_zero_judges_nothing(path):
    found, _ = verdicts(path, "zeros", "--reference", f"{path}:oracle_of_nothing")
    assert set(found.values()) == {"reference"}


def test_the_table_names_seed_worst_row_tile_and_the_json_file_holds_the_same(path, tmp_path):
    file = tmp_path / "report.json"
    result = invoke(f"{path}:attention", *CALL, "--seed", "7", "--json", file, "--const", "fault=scaled")
    assert result.exit_code == 1
    report = json.loads(file.read_text())
    assert report["seed"] == 7
    assert "seed=7" in result.stdout
    worst = report["cases"][0]["outputs"][0]
    assert str(worst["worst_row"]) in result.stdout
    assert str(worst["worst_tile"]) in result.stdout
    assert "1.5 times as large" in result.stdout
