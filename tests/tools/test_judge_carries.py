"""What a kernel carries from block to block of a cumulative sum or a scan is read from its output, and said."""

import pytest

import nki_hf
from tests.support.kernel_head import HEAD

CUMSUM = """
@nki.jit
def cumsum(x):
    out, ones = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), tile((128, 256))
    nisa.memset(dst=ones, value=1.0)
    for r in range(0, x.shape[0], 128):
        carry, old = tile((128, 1)), tile((128, 1))
        nisa.memset(dst=carry, value=0.0)
        nisa.memset(dst=old, value=0.0)
        for c in range(0, x.shape[1], 256):
            done = tile((128, 256))
            nisa.tensor_tensor_scan(
                dst=done, data0=ones, data1=load(x[r : r + 128, c : c + 256]), initial=carry, op0=nl.multiply, op1=nl.add
            )
            nisa.dma_copy(dst=out[r : r + 128, c : c + 256], src=done)
            end = done[:, 255:256]
            {carry}
    return out
"""
SCAN = """
@nki.jit
def scan(decay, x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    carry, old = tile((128, 1)), tile((128, 1))
    nisa.memset(dst=carry, value=0.0)
    nisa.memset(dst=old, value=0.0)
    for c in range(0, x.shape[1], 128):
        done = tile((128, 128))
        rate, new = load(decay[:, c : c + 128]), load(x[:, c : c + 128])
        nisa.tensor_tensor_scan(dst=done, data0=rate, data1=new, initial=carry, op0={ops[0]}, op1={ops[1]})
        nisa.dma_copy(dst=out[:, c : c + 128], src=done)
        end = done[:, 127:128]
        {carry}
    return out
"""
RIGHT = "nisa.tensor_copy(dst=carry, src=end)"
CARRIES = {
    RIGHT: "",
    "nisa.tensor_scalar(dst=carry, data=end, op0=nl.minimum, operand0=1.5)": "is clamped to at most 1.5",
    "nisa.tensor_scalar(dst=carry, data=end, op0=nl.maximum, operand0=0.0)": "is clamped to at least 0",
    "nisa.tensor_scalar(dst=carry, data=end, op0=nl.multiply, operand0=-0.5)": "-0.5 times what the block before ends with",
    "nisa.tensor_copy(dst=carry, src=old); nisa.tensor_copy(dst=old, src=end)": "a block late",
    "nisa.dma_copy(dst=carry[1:128, :], src=end[0:127, :]); nisa.dma_copy(dst=carry[0:1, :], src=end[127:128, :])": (
        "it is that of the row above"
    ),
}


@pytest.mark.parametrize("carry", CARRIES)
@pytest.mark.parametrize("task", ["cumsum", "selective_scan"])
def test_a_wrong_carry_is_named(task, carry, tmp_path):
    text = CUMSUM.format(carry=carry) if task == "cumsum" else SCAN.format(carry=carry, ops=("nl.multiply", "nl.add"))
    (tmp_path / "kernel.py").write_text(HEAD + text)
    record = nki_hf.judge(tmp_path / "kernel.py", task, until="values", seed=5)
    assert record["passed"] is (carry == RIGHT), record["sentence"]
    assert CARRIES[carry] in record["diagnosis"]
    assert not CARRIES[carry] or "begins with a wrong carry" in record["diagnosis"]


def test_operators_of_a_scan_that_are_exchanged_are_named(tmp_path):
    (tmp_path / "kernel.py").write_text(HEAD + SCAN.format(carry=RIGHT, ops=("nl.add", "nl.multiply")))
    record = nki_hf.judge(tmp_path / "kernel.py", "selective_scan", until="values")
    assert "the operators of the scan are exchanged" in record["diagnosis"], record["diagnosis"]


@pytest.mark.parametrize(
    ("carry", "said"),
    [
        ("nisa.memset(dst=carry, value=0.0) if c == 1920 else " + RIGHT, "is missing"),
        (RIGHT.replace("src=end", "src=done[:, 126:127]"), "is one step old"),
        ("nisa.tensor_copy(dst=carry, src=old if c else end); nisa.tensor_copy(dst=old, src=end)", "one block earlier"),
    ],
)
def test_a_carry_that_is_wrong_at_the_timed_size_alone_is_named(tmp_path, carry, said):
    file = tmp_path / "kernel.py"
    branch = f"if x.shape[1] > 1024:\n            {carry}\n        else:\n            {RIGHT}"
    file.write_text(HEAD + SCAN.format(ops=("nl.multiply", "nl.add"), carry=branch))
    record = nki_hf.judge(file, "selective_scan", check=(256, 512), at=(4096,), chip=("trn2",), seed=5)
    assert (record["passed"], record["stage"]) == (False, "times")
    assert said in record["sentence"], record["sentence"]
    assert "times as large" not in record["sentence"]
