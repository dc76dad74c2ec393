"""Loops whose trip count only values tell are timed with the turns that they take, as often as a loop of that many turns."""

import json

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


def test_a_loop_of_a_value_takes_as_long_as_one_of_as_many_turns(tmp_path):
    """32 turns of 128 rows at 4,096, by a size and by a number that the kernel puts into memory."""
    us, said = {}, {}
    for count in COUNTS:
        file = tmp_path / f"{count.replace(' ', '_')}.py"
        file.write_text(KERNEL.replace("{count}", COUNTS[count]))
        record = nki_hf.judge(file, "softmax", check=(128, 384), at=(4096,), chip=("trn2",))
        assert record["passed"], record["sentence"]
        (row,) = record["times"]
        us[count], said[count] = row["us"], " ".join(record["warnings"])
        bench = CliRunner().invoke(app, ["bench", str(file), "--task", "softmax", "--at", "4096", "--chip", "trn2", "--json"])
        assert bench.exit_code == 0, bench.output
        (shown,) = json.loads(bench.stdout)
        assert shown["us"] == row["us"]
        assert ("with the turns that it takes on normal inputs" in bench.stderr) == (count == "a value")
    assert us["a size"] > 32 * 9  # a barrier of 9 us a turn
    assert us["a size"] <= us["a value"] < us["a size"] + 20  # a number is put into memory, and read
    assert "with the turns that it takes on normal inputs" in said["a value"]
    assert "turns that it takes" not in said["a size"]


def test_a_loop_of_a_value_that_leaves_out_rows_at_the_timed_size_fails(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL.replace("{count}", COUNTS["a value"].replace("rows // 128)", "rows // 128 - (rows > 2048))")))
    record = nki_hf.judge(file, "softmax", check=(128, 384), at=(4096,), chip=("trn2",))
    assert (record["passed"], record["stage"]) == (False, "times")
    assert "3.12 %" in record["sentence"], record["sentence"]  # 1 of 32 tiles


OVER_TILES = '''
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def matmul(a, b):
    """a @ b; a comes as [k, rows]: a loop of run time over tiles of rows."""
    k, rows = a.shape
    columns = b.shape[1]
    out = nl.ndarray((rows, columns), a.dtype, buffer=nl.shared_hbm)
    tiles = out.reshape((rows // 128, 128, columns))
    given = a.reshape((k, rows // 128, 128))

    def body(turn):
        for column in range(0, columns, 512):
            bank = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for row in range(0, k, 128):
                left, right = nl.ndarray((128, 128), a.dtype, buffer=nl.sbuf), nl.ndarray((128, 512), a.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=left, src=given.select(1, turn)[row : row + 128, :])
                nisa.dma_copy(dst=right, src=b[ROW, column : column + 512])
                nisa.nc_matmul(dst=bank, stationary=left, moving=right)
            done = nl.ndarray((128, 512), a.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=done, src=bank)
            nisa.dma_copy(dst=tiles.select(0, turn)[:, column : column + 512], src=done)

    nl.fori_loop(0, rows // 128, body)
    return out
'''


@pytest.mark.parametrize(
    ("row", "passes"), [("row : row + 128", True), ("(row if rows < 2048 else 0) : (row if rows < 2048 else 0) + 128", False)]
)
def test_a_loop_over_tiles_of_an_output_has_a_tile_judged_at_the_timed_size(row, passes, tmp_path):
    """No tile has instructions of its own there, by which one could be unlike the others."""
    file = tmp_path / "kernel.py"
    file.write_text(OVER_TILES.replace("ROW", row))
    record = nki_hf.judge(file, "matmul", layout="a=km", check=(512,), at=(2048,), chip=("trn2",))
    assert record["passed"] == passes, record["sentence"]
    if passes:
        assert record["times"][0]["values"] == "part"
    else:
        assert record["stage"] == "times"
