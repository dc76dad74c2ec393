"""`nki_hf verify`: wrong outputs fail with the right verdict, right kernels pass, and exit codes say so."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.kernels import registry
from nki_hf.kernels.flash_const_max import certificate
from nki_hf.testing import DISTRIBUTIONS
from nki_hf.tools.verify_judge import judge

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


def invoke(*arguments):
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


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


def test_our_own_kernel_passes_with_every_kind_of_mask_of_the_command():
    for more in ((), ("--causal",), ("--causal", "--window", "100"), ("--lnc", "2", "--dtype", "float32")):
        result = invoke("nki_hf.kernels.flash_prefill:flash_prefill", "--shape", "b=1,hq=2,hkv=1,sq=130,skv=200,d=64", *more)
        assert result.exit_code == 0, result.stdout
        assert "PASS" in result.stdout


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


ODD = """
from nki_hf.lang import nisa, nki, nl
import numpy as np


def copied(x, dtype=None):
    out = nl.ndarray(x.shape, dtype or x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x)
    return out


@nki.jit
def one(x):
    return copied(x)


@nki.jit
def three(x):
    return copied(x), copied(x), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)


@nki.jit
def nothing(x):
    copied(x)


@nki.jit
def widened(x):
    return copied(x, nl.float32)


@nki.jit
def value_error(x):
    raise ValueError("the kernel says no")


@nki.jit
def runtime_error(x):
    raise RuntimeError("the kernel gives up")


@nki.jit
def beyond(x):
    row = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=row, value=500)
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[0:1], src=x.ap(pattern=[[64, 1], [1, 64]], scalar_offset=row, indirect_dim=0))
    return out


@nki.jit
def needs_more(x, factor):
    return copied(x)


def same(x):
    return x


def twice(x):
    return x, x


def thrice(x):
    return x, x, x


def other_names(y):
    return y


def fails(x):
    raise ValueError("the reference says no")
"""


@pytest.fixture
def odd(tmp_path):
    file = tmp_path / "odd.py"
    file.write_text(ODD)
    return file


def odd_call(odd, kernel, reference, *more, dtype="float32"):
    return invoke(f"{odd}:{kernel}", "--arg", f"x=128x64:{dtype}", "--reference", f"{odd}:{reference}", *more)


@pytest.mark.parametrize("kernel", ["value_error", "runtime_error"])
def test_what_the_kernel_raises_is_a_finding_with_its_line(odd, kernel):
    result = odd_call(odd, kernel, "same", "--json", "-")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert {case["verdict"] for case in report["cases"]} == {"error"}
    (fault,) = report["faults"]
    text = "raise ValueError" if kernel == "value_error" else "raise RuntimeError"
    line = 1 + next(i for i, item in enumerate(ODD.split("\n")) if text in item)
    assert (fault["kind"], fault["file"], fault["line"]) == ("error", str(odd), line)
    assert f"({odd}:{line})" in report["cases"][0]["detail"]


@pytest.mark.parametrize(
    ("kernel", "reference", "verdict"),
    [
        ("one", "same", "pass"),
        ("one", "twice", "outputs"),
        ("three", "same", "outputs"),
        ("three", "twice", "outputs"),
        ("nothing", "same", "outputs"),
        ("three", "thrice", "never written"),
    ],
)
def test_as_many_outputs_as_the_reference_has(odd, kernel, reference, verdict):
    report = json.loads(odd_call(odd, kernel, reference, "--json", "-").stdout)
    assert report["cases"][0]["verdict"] == verdict
    assert report["passed"] == (verdict == "pass")


@pytest.mark.parametrize(("more", "verdict"), [((), "dtype"), (("--out-dtype", "float32"), "pass")])
def test_an_output_has_the_type_of_the_first_array_unless_another_is_named(odd, more, verdict):
    report = json.loads(odd_call(odd, "widened", "same", "--json", "-", *more, dtype="bfloat16").stdout)
    assert {case["verdict"] for case in report["cases"]} == {verdict}


def test_json_holds_no_nan_after_a_run_time_index_out_of_bounds(odd):
    def refuse(name):
        raise AssertionError(name)

    report = json.loads(odd_call(odd, "beyond", "same", "--json", "-").stdout, parse_constant=refuse)
    assert report["faults"][0]["details"]["index"] == 500


@pytest.mark.parametrize(
    ("kernel", "reference", "more", "words"),
    [
        ("needs_more", "same", (), "missing a required argument: 'factor'"),
        ("one", "other_names", (), "the reference cannot be"),
        ("one", "fails", (), "the reference raised ValueError: the reference says no"),
        ("one", "same", ("--lnc", "0"), "1 or 2"),
        ("one", "same", ("--lnc", "3"), "1 or 2"),
        ("one", "same", ("--lnc", "-1"), "1 or 2"),
        ("one", "same", ("--rtol", "-1"), "positive"),
        ("one", "same", ("--json", "/no/such/folder/x.json"), "cannot be written"),
        ("one", "same", ("--out-dtype", "int99"), "int99"),
    ],
)
def test_wrong_use_of_kernel_reference_or_option_ends_with_one_sentence(odd, kernel, reference, more, words):
    result = odd_call(odd, kernel, reference, *more)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("text", "words"), [("def f(:\n", "SyntaxError"), ("import no_such_module\n", "no_such_module")])
def test_a_file_that_cannot_be_imported_is_named_with_the_line(tmp_path, text, words):
    file = tmp_path / "broken.py"
    file.write_text(text)
    result = invoke(f"{file}:f")
    assert result.exit_code == 2
    assert words in result.stderr
    assert f"{file}:1" in result.stderr


@pytest.mark.parametrize("shape", ["sq=17,skv=33,d=1", "sq=128,skv=128,d=2", "sq=17,skv=33,d=4"])
def test_rows_whose_values_cancel_do_not_fail_a_right_kernel(shape):
    result = invoke("nki_hf.kernels.flash_prefill:flash_prefill", "--shape", f"b=1,hq=1,hkv=1,{shape}", "--causal")
    assert result.exit_code == 0, result.stdout


def test_a_row_that_cancels_is_judged_by_what_was_summed():
    reference = np.array([[1.0], [1e-6]])
    output = reference + 1e-3
    assert judge(output, reference, tolerance=0.01, scale=np.array([1.0, 1.0])).passed
    assert judge(output, reference, tolerance=0.01).verdict == "rows"
    assert judge(reference + np.array([[0.0], [0.02]]), reference, tolerance=0.01, scale=np.array([1.0, 1.0])).verdict == "rows"


ROUND_TRIP = """
from nki_hf.lang import nisa, nki, nl


@nki.jit
def round_trip(x, queues):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    middle = nl.ndarray(x.shape, x.dtype, buffer=nl.hbm)
    tile = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    back = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf)
    second = nisa.engine.scalar if queues == 2 else nisa.engine.sync
    nisa.dma_copy(dst=tile, src=x, engine=nisa.engine.sync)
    nisa.dma_copy(dst=middle, src=tile, engine=nisa.engine.sync)
    nisa.dma_copy(dst=back, src=middle, engine=second)
    nisa.dma_copy(dst=out, src=back, engine=second)
    return out


def same(x, queues):
    return x
"""


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("foreign", [False, True])
def test_orders_that_are_only_inferred_are_a_finding_of_their_own(tmp_path, queues, foreign):
    file = tmp_path / "round_trip.py"
    file.write_text(ROUND_TRIP)
    call = [f"{file}:round_trip", "--arg", "x=128x64", "--const", f"queues={queues}", "--reference", f"{file}:same"]
    result = invoke(*call, "--json", "-", *(["--third-party"] if foreign else []))
    report = json.loads(result.stdout)
    assert (result.exit_code, report["faults"]) == (0, [])
    assert [found["details"]["cause"] for found in report["inferred"]] == (["hbm"] if queues == 2 and not foreign else [])
    if report["inferred"]:
        line = 1 + next(i for i, text in enumerate(ROUND_TRIP.split("\n")) if "src=middle" in text)
        assert report["inferred"][0]["line"] == line
        assert "inferred" in invoke(*call).stdout


@pytest.mark.parametrize("lnc", ["1", "2"])
def test_our_own_kernel_rests_on_no_inferred_order(lnc):
    call = ["nki_hf.kernels.flash_prefill:flash_prefill", "--shape", "b=1,hq=2,hkv=1,sq=130,skv=200,d=64", "--causal"]
    report = json.loads(invoke(*call, "--lnc", lnc, "--json", "-").stdout)
    assert report["passed"]
    assert report["inferred"] == []


def _ours(name, *words):
    path = Path(registry.__file__).parent / name / "kernel.py"
    return CliRunner().invoke(app, ["verify", f"{path}:{name}", *words])


def test_a_kernel_of_few_rows_is_run_on_those_unless_a_shape_is_given():
    done = _ours("flash_decode", "--json", "-")
    assert done.exit_code == 0, done.stderr
    assert "sq=256,skv=512,d=64: run on b=1,hq=2,hkv=1,sq=1,skv=512,d=64" in done.stderr
    assert len(json.loads(done.stdout)["cases"]) == len(DISTRIBUTIONS)
    asked = _ours("flash_decode", "--shape", "b=1,hq=2,hkv=1,sq=256,skv=512,d=64")
    assert asked.exit_code == 2
    assert "seqlen_q=17 or more is not supported by flash_decode" in asked.stderr


def test_of_gradients_it_says_what_compares_them():
    done = _ours("flash_backward")
    assert done.exit_code == 2
    assert "flash_backward computes gradients" in done.stderr
    assert "attention_gradients" in done.stderr


OURS = f"{Path(certificate.__file__).with_name('kernel.py')}:flash_const_max"


@pytest.mark.parametrize("shape", ["b=1,hq=2,hkv=1,sq=256,skv=512,d=64", "hq=4,hkv=2,sq=300,skv=700,causal"])
def test_tiles_that_fail_the_certificate_are_computed_in_a_second_launch_and_judged(shape):
    """flash_const_max without its loop says which query tiles are not right; the float64 oracle judges all of them after."""
    found = json.loads(invoke(OURS, "--shape", shape, "--chip", "trn2", "--json", "-").stdout)
    assert {case["distribution"]: case["verdict"] for case in found["cases"]} == dict.fromkeys(DISTRIBUTIONS, "pass")
    assert any(text.startswith("outlier_key: ") and "failed the certificate" in text for text in found["warnings"])
    assert not any(text.startswith("normal: ") for text in found["warnings"])


def test_tiles_that_a_certificate_lets_pass_wrongly_are_judged_as_they_are(monkeypatch):
    monkeypatch.setattr(certificate, "SUM_MAX", float("inf"))
    monkeypatch.setattr(certificate, "_finite", lambda env, ledger, good: None)
    shape = "b=1,hq=2,hkv=1,sq=256,skv=512,d=64"
    found = json.loads(invoke(OURS, "--shape", shape, "--chip", "trn2", "--json", "-").stdout)
    assert {case["distribution"]: case["verdict"] for case in found["cases"]}["outlier_key"] == "not finite"
