"""What a kernel did wrong is said in words: foreign functions as operators, results taken for tiles, returned inputs, fills."""

import math
import operator

import numpy as np
import pytest

import nki_hf
from nki_hf.sim import isa, language
from nki_hf.sim.isa.operators import Operator
from nki_hf.tasks import load_task
from nki_hf.tools.judging.explain import explained
from nki_hf.tools.judging.foreign_functions import foreign

HEAD = "import math\nimport operator\nimport numpy as np\nimport nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n"
SOFTMAX = (
    HEAD
    + """
@nki.jit
def softmax(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    {line}
    nisa.dma_copy(dst=out, src=t)
    return {returned}
"""
)
ROPE = (
    HEAD
    + """
@nki.jit
def rope(x, cos, sin):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for r in range(0, x.shape[0], 128):
        n = min(128, x.shape[0] - r)
        t, c, s, turned = (nl.ndarray((n, 128), nl.float32, buffer=nl.sbuf) for _ in range(4))
        for tile, source in ((t, x), (c, cos), (s, sin)):
            nisa.dma_copy(dst=tile, src=source[r : r + n, :])
        nisa.memset(dst=turned, value=0.0)
        nisa.tensor_scalar(dst=turned[:, :32], data=t[:, 32:64], op0=nl.multiply, operand0=-1.0)
        nisa.tensor_copy(dst=turned[:, 32:64], src=t[:, :32])
        nisa.tensor_tensor(dst=turned, data1=turned, data2=s, op=nl.multiply)
        nisa.tensor_tensor(dst=t[:, :64], data1=t[:, :64], data2=c[:, :64], op=nl.multiply)
        nisa.tensor_tensor(dst=t, data1=t, data2=turned, op=nl.add)
        nisa.dma_copy(dst=out[r : r + n, :], src=t)
    return out
"""
)
CAUSAL = (
    HEAD
    + """
@nki.jit
def attention(q, k, v):
    n, d = q.shape
    out = nl.ndarray((n, d), q.dtype, buffer=nl.shared_hbm)
    kt, vt = nl.ndarray((d, n), k.dtype, buffer=nl.sbuf), nl.ndarray((128, n // 128, d), v.dtype, buffer=nl.sbuf)
    for j in range(n // 128):
        nisa.dma_copy(dst=vt[:, j, :], src=v[j * 128 : (j + 1) * 128, :])
        nisa.dma_transpose(dst=kt[:, j * 128 : (j + 1) * 128], src=k[j * 128 : (j + 1) * 128, :])
    for i in range(n // 128):
        qt, s = nl.ndarray((d, 128), q.dtype, buffer=nl.sbuf), nl.ndarray((128, n), nl.float32, buffer=nl.sbuf)
        nisa.dma_transpose(dst=qt, src=q[i * 128 : (i + 1) * 128, :])
        for b in range(0, n, 512):
            w = min(512, n - b)
            ps = nl.ndarray((128, w), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=ps, stationary=qt, moving=kt[:, b : b + w])
            nisa.activation(dst=s[:, b : b + w], op=nl.copy, data=ps, scale=d**-0.5)
        nisa.affine_select(dst=s, pattern=[[-1, n]], channel_multiplier=1, on_true_tile=s, on_false_value=FILL,
                           cmp_op=nl.greater_equal, offset=i * 128)
        top, total = (nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf) for _ in range(2))
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=s, axis=1, negate=True)
        p = nl.ndarray((128, n), nl.bfloat16, buffer=nl.sbuf)
        nisa.activation_reduce(dst=p, op=nl.exp, data=s, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        acc = nl.ndarray((128, d), nl.float32, buffer=nl.psum)
        for t in range(n // 128):
            tp, pt = (nl.ndarray((128, 128), nl.bfloat16, buffer=place) for place in (nl.psum, nl.sbuf))
            nisa.nc_transpose(dst=tp, data=p[:, t * 128 : (t + 1) * 128])
            nisa.tensor_copy(dst=pt, src=tp)
            nisa.nc_matmul(dst=acc, stationary=pt, moving=vt[:, t, :])
        o = nl.ndarray((128, d), q.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=o, data=acc, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=o)
    return out
"""
)


def judged(tmp_path, source, task, **options):
    """The sentence of a judgement."""
    (tmp_path / "kernel.py").write_text(source)
    return nki_hf.judge(tmp_path / "kernel.py", task, timeout=120, **options)["sentence"]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (np.exp, "exp"), (np.add, "add"), (np.maximum, "maximum"), (np.max, "maximum"), (np.sum, "add"), (np.power, "power"),
        (math.exp, "exp"), (math.sqrt, "sqrt"), (max, "maximum"), (min, "minimum"), (abs, "abs"), (sum, "add"),
        (operator.add, "add"), (operator.mul, "multiply"), (operator.truediv, "divide"), (operator.lt, "less"),
    ],
)  # fmt: skip
def test_a_function_from_elsewhere_is_named_with_the_operator_of_the_language(function, name):
    said, advice = foreign(function, "op")
    assert isinstance(getattr(language, name), Operator)
    assert said.startswith("op=<")
    assert "which no engine has" in said
    assert advice == f"Use nl.{name}: op=nl.{name}."


def test_a_function_of_the_kernel_has_no_operator_in_its_place():
    def exp(x):
        return x

    assert foreign(lambda a, b: a + b, "op0")[0] == "op0 is a lambda, a Python function, which no engine has"
    assert foreign(exp, "op") == (
        "op=<function exp> is a Python function, which no engine has",
        "Operators are names of the language: nl.add, nl.multiply, nl.maximum, nl.exp and so on (docs/nki_surface.md).",
    )
    assert foreign(object(), "op") == ("", "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("nisa.activation(dst=t, op=np.exp, data=t)", "op=<ufunc 'exp'> is a NumPy function, which no engine has"),
        ("nisa.tensor_scalar(dst=t, data=t, op0=max, operand0=0.0)", "Use nl.maximum: op0=nl.maximum"),
        ("t += nisa.activation(nl.exp, t)", "an instruction of this language returns no tile: it writes dst="),
        ("t = nisa.tensor_tensor(t, t, op=nl.add)", "an instruction of this language returns no tile: it writes dst="),
    ],
)
def test_the_judge_says_so(tmp_path, line, words):
    assert words in judged(tmp_path, SOFTMAX.format(line=line, returned="out"), "softmax")


def test_a_call_that_gives_dst_and_forgets_an_operand_is_not_taken_for_an_older_style(tmp_path):
    said = judged(tmp_path, SOFTMAX.format(line="nisa.tensor_tensor(dst=t, data1=t, op=nl.add)", returned="out"), "softmax")
    assert "'data2'" in said
    assert "returns no tile" not in said


@pytest.mark.parametrize("name", ["activation", "tensor_copy", "tensor_reduce", "nc_matmul", "memset", "dma_copy", "iota"])
def test_every_instruction_without_its_dst_says_that_it_returns_no_tile(name):
    with pytest.raises(TypeError) as caught:
        getattr(isa, name)()
    said, advice = explained(caught.value)
    assert "returns no tile" in said
    assert f"nisa.{name}(dst=tile, ...)" in advice


def test_an_input_that_is_returned_is_named(tmp_path):
    said = judged(tmp_path, SOFTMAX.format(line="", returned="x"), "softmax")
    assert "out is the kernel's own input x, returned unchanged" in said
    assert "constants" not in said


@pytest.mark.parametrize(
    ("fill", "words"), [("-5.0", "are -5 instead of"), ("-30.0", "between -100 and -10"), ("-100.0", "between -100 and -10")]
)
def test_the_number_of_hidden_scores_is_said_as_far_as_the_inputs_show_it(tmp_path, fill, words):
    said = judged(tmp_path, CAUSAL.replace("FILL", fill), "attention_causal", seed=5)
    assert "hidden scores" in said
    assert words in said


def test_partial_rotary_is_named(tmp_path):
    assert "the first half of head_dim alone is turned (partial rotary), the rest is copied" in judged(tmp_path, ROPE, "rope")


def test_a_gradient_that_is_scaled_before_it_is_squared_is_a_mistake_of_its_own():
    task = load_task("adamw")
    given = task.inputs(128, "normal", np.random.default_rng(0))
    wrong = {words: function(**given) for words, function in task.wrong.items() if "before it is squared" in words}
    right = task.reference(**given)
    assert len(wrong) == 4
    for _, m, v in wrong.values():
        assert np.array_equal(m, right[1])
        assert not np.allclose(v, right[2], rtol=1e-4)
