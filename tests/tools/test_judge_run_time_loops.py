"""Loops whose trip count only values tell: no time is given that such a kernel cannot have, and what is assumed is said."""

import pytest
from typer.testing import CliRunner

import nki_hf
from nki_hf.cli import app

COUNTS = {
    "a value": """
    tile = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=rows // 128)
    count = nisa.register_alloc()
    nisa.register_load(dst=count, src=tile)""",
    "a size": """
    count = rows // 128""",
}
KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(x):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm){count}
    xs, outs = x.reshape((rows // 128, 128, width)), out.reshape((rows // 128, 128, width))

    def body(i):
        tile = nl.ndarray((128, width), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=xs.select(0, i))
        top = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=outs.select(0, i), src=tile)

    nl.fori_loop(0, count, body)
    return out
"""


@pytest.mark.parametrize("count", COUNTS)
def test_a_kernel_is_not_timed_below_what_any_kernel_takes(count, tmp_path):
    """32 turns of 128 rows at 4,096: counted as one the kernel would be faster than its transfers alone."""
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL.replace("{count}", COUNTS[count]))
    record = nki_hf.judge(file, "softmax", check=(128, 384), at=(4096,), chip=("trn2",))
    bench = CliRunner().invoke(app, ["bench", str(file), "--task", "softmax", "--at", "4096", "--chip", "trn2"])
    assert bench.exit_code == 0, bench.output
    if count == "a size":
        assert record["passed"], record["sentence"]
        (row,) = record["times"]
        assert row["us"] > 32 * 9 > row["least_us"]  # a barrier of 9 us a turn
        assert "one turn" not in bench.stderr
    else:
        assert (record["passed"], record["stage"]) == (False, "times")
        (finding,) = record["findings"]
        assert finding["kind"] == "trip count"
        assert "timed as one turn: it takes" in finding["message"]
        assert "below the 55.0 that no kernel can" in finding["message"]
        assert "kernel.py at size 4,096: a loop whose trip count is a value is timed as one turn" in " ".join(
            bench.stderr.split()
        )
