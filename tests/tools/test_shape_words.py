"""Words of `--shape` for masks that are tensors: one parser, so that every verb that takes a shape can ask about them."""

import contextlib
import json
import math
import re

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app
from nki_hf.errors import UnsupportedProblem
from nki_hf.problem import Mask
from nki_hf.tools.shape import problem_of

OURS = "nki_hf.kernels.flash_prefill:flash_prefill"
SMALL = "hq=4,hkv=2,sq=128,skv=600,d=64,dtype=float32"


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "mask"),
    [
        ("bias", Mask(bias="additive", bias_rows=True)),
        ("bias=rows", Mask(bias="additive", bias_rows=True)),
        ("bias=heads", Mask(bias="additive", bias_heads=True)),
        ("bias=one", Mask(bias="additive")),
        ("bias=batch+heads+rows", Mask(bias="additive", bias_batch=True, bias_heads=True, bias_rows=True)),
        ("bias=rows+batch", Mask(bias="additive", bias_batch=True, bias_rows=True)),
        ("mask", Mask(bias="boolean", bias_rows=True)),
        ("mask=batch", Mask(bias="boolean", bias_batch=True)),
        ("bounds", Mask(runtime_bounds=True)),
        ("causal,bounds,bias", Mask(q_offset=4, ahead=1, runtime_bounds=True, bias="additive", bias_rows=True)),
        ("causal,offset=0", Mask(ahead=1)),
        ("window=3,offset=-9", Mask(q_offset=-9, ahead=1, window=3)),
    ],
)
def test_a_word_is_a_mask(words, mask):
    assert problem_of(f"b=2,hq=2,sq=8,skv=12,{words}").mask == mask


@pytest.mark.parametrize(
    ("words", "axes"),
    [
        ("b=1,hq=2,sq=8,bias=batch+heads+rows", "heads rows"),
        ("b=2,hq=1,sq=8,mask=batch+heads", "batch"),
        ("b=2,hq=2,sq=1,bias", ""),
    ],
)
def test_an_axis_of_size_1_is_none_as_in_a_call_with_that_tensor(words, axes):
    mask = problem_of(words).mask
    assert [name for name in ("batch", "heads", "rows") if getattr(mask, f"bias_{name}")] == axes.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bias=", "is not known"),
        ("bias=head", "batch, heads, rows joined by +, or one"),
        ("bias=rows+rows", "names no axes"),
        ("bias=one+rows", "names no axes"),
        ("bias,mask", "has a bias and a mask"),
        ("bias,bias=heads", "says bias twice"),
        ("bounds=3", "is not known"),
        ("offset=4", "a causal call or a window"),
        ("causal,offset=x", "not a number"),
        (f"causal,offset={2**31}", "not an offset"),
        ("causal,offset", "is not known"),
    ],
)
def test_a_word_that_says_nothing_is_refused(words, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        problem_of(f"sq=8,{words}")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e39", "-1e39", "0", "-1", "1e-46", "1e-44", "3e38", "2"])
@pytest.mark.parametrize("word", ["scale", "softcap"])
def test_a_number_is_refused_where_a_call_refuses_it(word, number):
    """Float32 holds 1.4e-45 to 3.4028234663852886e38 above zero; a cap of 0 or below caps nothing."""
    with np.errstate(over="ignore"):
        held = np.float32(float(number))
    refused = not math.isfinite(held) or (word == "softcap" and not held > 0)
    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(UnsupportedProblem) if refused else contextlib.nullcontext():
        nki_hf.attention(q, q, q, **{word: float(number)})
    with pytest.raises(ValueError, match=f"{word}={number}") if refused else contextlib.nullcontext():
        problem_of(f"sq=4,d=8,{word}={number}")


@pytest.mark.parametrize("verb", ["explain", "verify", "bench", "report", "trace", "cost", "tune"])
def test_every_verb_with_a_shape_names_the_words_and_their_defaults(verb):
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", invoke(verb, "--help").stdout).split())
    assert "bias (added to the scores)" in text
    assert "(rows; one = none of them)" in text
    assert "bounds (first and last key of each row)" in text
    assert "offset=n (skv - sq)" in text


@pytest.mark.parametrize(
    ("words", "chip", "kernel", "mask"),
    [
        ("bias", "trn2", "flash_prefill", "dense bias"),  # flash_const_max has no bias that differs by row
        ("bias=one", "trn2", "flash_const_max", "key bias"),
        ("bias=one", "trn1", "flash_prefill", "key bias"),
        ("mask=heads,causal", "trn3", "flash_prefill", "band + key mask: ahead 1, offset 0"),
        ("bounds", "trn2", "flash_const_max", "bounds"),
        ("d=600,bias", "trn2", "sdpa", "dense bias"),
        ("d=600,bias,softcap=5", "trn2", "eager", "dense bias"),
    ],
)
def test_explain_says_what_would_run_such_a_call_and_why_nothing_else(words, chip, kernel, mask):
    """As docs/support.md: a key bias per head, and a bias or mask per row, are flash_prefill's on every chip."""
    (row,) = json.loads(invoke("explain", "--shape", f"hq=2,sq=256,{words}", "--chip", chip, "--json").stdout)
    assert (row["kernel"], row["mask"]) == (kernel, mask)
    assert bool(row["reasons"]) == (kernel in ("sdpa", "eager"))
    assert all(limit in "".join(row["reasons"]) for limit in (["head_dim=600", "mask.bias=additive"] if row["reasons"] else []))


def test_explain_takes_a_call_or_a_model():
    done = invoke("explain", "--shape", "sq=256", "--model", "llama")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "leave out --model" in done.stderr
    shown = invoke("explain", "--shape", "hq=2,sq=256,bias").stdout
    assert "1 attention calls, 0 of them run torch" in " ".join(shown.split())


@pytest.mark.parametrize("word", ["bias", "bias=one", "bias=heads+rows", "mask", "mask=heads", "bounds", "causal,offset=20"])
def test_verify_judges_a_kernel_of_ours_on_it(word):
    result = invoke("verify", OURS, "--shape", f"hq=2,hkv=1,sq=130,skv=200,d=64,{word}", "--json", "-")
    found = json.loads(result.stdout)
    assert {case["verdict"] for case in found["cases"]} == {"pass"}, found


BIASED = """
from nki_hf.lang import nisa, nki, nl


@nki.jit
def attention(q, k, v, bias, ignored=False):
    \"\"\"q, k [64, 128], v [128, 64], bias [1, 1, 128, 128] float32 -> out [128, 64].\"\"\"
    d, s = q.shape
    out = nl.ndarray((s, d), q.dtype, buffer=nl.shared_hbm)
    qs, ks = nl.ndarray((d, s), q.dtype, buffer=nl.sbuf), nl.ndarray((d, s), k.dtype, buffer=nl.sbuf)
    vs, added = nl.ndarray((s, d), v.dtype, buffer=nl.sbuf), nl.ndarray((s, s), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=qs, src=q)
    nisa.dma_copy(dst=ks, src=k)
    nisa.dma_copy(dst=vs, src=v)
    nisa.dma_copy(dst=added, src=bias[0, 0])
    product = nl.ndarray((s, s), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=qs, moving=ks)
    scores = nl.ndarray((s, s), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=scores, data=product, op0=nl.multiply, operand0=d ** -0.5)
    if not ignored:
        nisa.tensor_tensor(dst=scores, data1=scores, data2=added, op=nl.add)
    top = nl.ndarray((s, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=1)
    # A row that sees no key: its largest score is -inf, of which exp(-inf - top) would be NaN.
    nisa.tensor_scalar(dst=top, data=top, op0=nl.maximum, operand0=-1e30, op1=nl.multiply, operand1=-1.0)
    total = nl.ndarray((s, 1), nl.float32, buffer=nl.sbuf)
    probs = nl.ndarray((s, s), nl.bfloat16, buffer=nl.sbuf)
    nisa.activation(dst=probs, op=nl.exp, data=scores, bias=top, reduce_op=nl.add, reduce_res=total,
                    reduce_cmd=nisa.reduce_cmd.reset_reduce)
    nisa.tensor_scalar(dst=total, data=total, op0=nl.maximum, operand0=1e-30)
    inverse = nl.ndarray((s, 1), nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=total)
    transposed = nl.ndarray((s, s), nl.bfloat16, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed, data=probs, engine=nisa.engine.tensor)
    weights = nl.ndarray((s, s), nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_copy(dst=weights, src=transposed)
    result = nl.ndarray((s, d), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=result, stationary=weights, moving=vs)
    tile = nl.ndarray((s, d), q.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=tile, data=result, op0=nl.multiply, operand0=inverse)
    nisa.dma_copy(dst=out, src=tile)
    return out


def oracle(q, k, v, bias, ignored=False):
    import numpy as np
    scores = q.T @ k * q.shape[0] ** -0.5 + bias[0, 0]
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30) @ v
"""


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
def test_verify_gives_a_kernel_of_ones_own_the_bias_and_judges_with_it(tmp_path, ignored, reference):
    path = tmp_path / "biased.py"
    path.write_text(BIASED)
    more = ["--reference", f"{path}:oracle"] if reference else []
    layout, constant = "q=ds,k=ds,v=sd,out=sd", f"ignored={ignored}"
    shape = "sq=128,skv=128,d=64,bias"
    result = invoke(
        "verify", f"{path}:attention", "--shape", shape, "--layout", layout, "--const", constant, *more, "--json", "-"
    )
    found = {case["distribution"]: case["verdict"] for case in json.loads(result.stdout)["cases"]}
    assert (set(found.values()) == {"pass"}) != ignored, found


@pytest.mark.parametrize("word", ["sink", "bounds", "mask=heads", "bias"])
def test_verify_refuses_a_tensor_that_the_kernel_has_no_parameter_for(tmp_path, word):
    path = tmp_path / "plain.py"
    path.write_text(BIASED.replace("q, k, v, bias, ignored", "q, k, v, ignored"))
    result = invoke(
        "verify", f"{path}:attention", "--shape", f"sq=128,skv=128,d=64,{word}", "--layout", "q=ds,k=ds,v=sd,out=sd"
    )
    assert (result.exit_code, result.stdout) == (2, "")
    name = {"sink": "sink", "bounds": "hi, lo"}.get(word, "bias")
    assert f"the kernel has no parameter: {name}." in result.stderr


@pytest.mark.parametrize(("verb", "field"), [("bench", "nki_us_simulated"), ("cost", "us"), ("report", "total_us")])
@pytest.mark.parametrize("word", ["bias", "bias=heads+rows", "mask", "bounds"])
def test_times_are_those_of_a_call_that_has_it(verb, field, word):
    """Of one kernel, on the same sizes: it loads the tensor and applies it, so that it takes longer."""

    def us(shape):
        kernel = ("--kernel", "flash_prefill") if verb == "report" else ()
        text = invoke(verb, *kernel, "--shape", shape, "--chip", "trn2", "--json").stdout
        return float(re.search(rf'"{field}": ([\d.]+)', text)[1])

    assert us(f"{SMALL},{word}") > us(SMALL)


@pytest.mark.parametrize(
    ("word", "least"), [("bias", 128 * 600 * 4), ("bias=heads+rows", 4 * 128 * 600 * 4), ("mask", 128 * 600)]
)
def test_trace_and_report_show_what_it_loads(tmp_path, word, least):
    """At least every byte of the tensor once: 4 a bias, 1 a truth value."""
    from nki_hf.tools.modelled import ModelRequest, stream

    def loaded(shape):
        events = stream(ModelRequest(kernel="flash_prefill", shape=shape))
        return sum(r.elements * r.dtype.itemsize for event in events for r in event.reads if r.buffer.space.endswith("hbm"))

    assert loaded(f"{SMALL},{word}") - loaded(SMALL) >= least
    picture = tmp_path / "trace.svg"
    done = invoke("trace", "--kernel", "flash_prefill", "--shape", f"{SMALL},{word}", "--chip", "trn2", "-o", picture)
    assert done.exit_code == 0, done.stderr
    assert word in picture.read_text()


def test_tune_takes_bounds_and_refuses_a_bias_by_name():
    """flash_const_max has no bias: its certificate bounds the scores by the lengths of q and k."""
    call = ["tune", "flash_const_max", "--const", "group=1", "--chip", "trn2", "--shape"]
    done = invoke(*call, "hq=2,sq=256,bias")
    assert done.exit_code == 2
    assert "bias=additive is not supported by flash_const_max" in done.stderr
    assert invoke(*call, "hq=2,sq=256,bounds").exit_code == 0
