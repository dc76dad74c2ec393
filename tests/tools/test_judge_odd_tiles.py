"""At the timed size the tiles whose program is unlike that of the others are judged: what errs in one tile alone is seen."""

from pathlib import Path

import pytest
from judged_kernels import RIGHT, SOFTMAX_OF_ROWS

import nki_hf

KERNEL = RIGHT.replace("for j in range(i + 1):", "for j in range(tiles):").replace("if j == i:", "if False:")
CAUSAL = RIGHT.replace("if j == i:", "if True:").replace("offset=0", "offset=(i - j) * T")
"""Each block of keys is masked, by a number that grows from tile to tile."""


def _judged(folder, text, task="attention", **options):
    file = folder / "kernel.py"
    file.write_text(text)
    return nki_hf.judge(file, task, chip=("trn2",), **options)


@pytest.mark.parametrize(
    ("place", "wrong", "rows"),
    [
        ("moving=vs[:, j, :]", "moving=vs[:, 3 if (s, i, j) == (2048, 9, 4) else j, :]", (1152,)),
        (
            "out[i * T : (i + 1) * T, :]",
            "out[(o := {5: 6, 6: 5}.get(i, i) if s > 512 else i) * T : (o + 1) * T, :]",
            (640, 768),
        ),
        (
            "nisa.scalar_tensor_tensor(dst=acc, data=acc, op0=nl.multiply, operand0=correction,",
            "nisa.scalar_tensor_tensor(dst=acc, data=acc, op0=nl.multiply, "
            "operand0=here if (s, i, j) == (2048, 11, 4) else correction,",
            (1408,),
        ),
        # Of the same program as the other tiles, but for one place, operand or number:
        ("moving=vs[:, j, :]", "moving=vs[:, (j, j ^ 1)[(s, i) == (2048, 9)], :]", (1152,)),
        ("moving=ks[:, j * T : (j + 1) * T]", "moving=ks[:, (o := j ^ ((s, i) == (2048, 14))) * T : (o + 1) * T]", (1792,)),
    ],
)
def test_a_tile_that_is_unlike_the_others_is_judged(tmp_path, place, wrong, rows):
    assert place in KERNEL
    given = {"layout": "q=ds,k=ds,v=sd", "check": (256, 512), "at": (2048,)}
    record = _judged(tmp_path, KERNEL.replace(place, wrong), **given)
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert any(f"of rows {first:,} to" in record["sentence"] for first in rows), record["sentence"]


@pytest.mark.parametrize("tile", [3, 9, 14])
def test_a_causal_mask_that_is_off_by_one_in_one_tile_is_seen(tmp_path, tile):
    masked = CAUSAL.replace("offset=(i - j) * T", f"offset=(i - j) * T + ((s, i) == (2048, {tile}))")
    assert masked != CAUSAL
    given = {"layout": "q=ds,k=ds,v=sd", "check": (256, 512), "at": (2048,)}
    assert _judged(tmp_path, CAUSAL, "attention_causal", **given)["passed"]
    record = _judged(tmp_path, masked, "attention_causal", **given)
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert f"of rows {tile * 128:,} to" in record["sentence"], record["sentence"]
    assert "out equals what comes out if the mask is one ahead" in record["sentence"]
    row = int(record["sentence"].split("row [")[1].split("]")[0])  # of the whole output
    assert tile * 128 <= row < (tile + 1) * 128


def test_a_wrong_block_is_seen_where_every_second_tile_goes_backwards(tmp_path):
    """Steps from tile to tile are not alike there, those over two tiles are."""
    turned = CAUSAL.replace("for j in range(i + 1):", "for j in range(i + 1)[:: 1 - 2 * (i % 2)]:")
    wrong = turned.replace("moving=vs[:, j, :]", "moving=vs[:, j ^ 1 if (s, i) == (2048, 11) and j in (4, 5) else j, :]")
    assert CAUSAL != turned != wrong
    given = {"layout": "q=ds,k=ds,v=sd", "check": (256, 512), "at": (2048,)}
    assert _judged(tmp_path, turned, "attention_causal", **given)["passed"]
    record = _judged(tmp_path, wrong, "attention_causal", **given)
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "of rows 1,408 to 1,535" in record["sentence"], record["sentence"]


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        ("_added(total[:, t, :], bank, t == i)", "(i, t) == (9, 4) or _added(total[:, t, :], bank, t == i)"),
        ("moving=k_rows[:, t, :]", "moving=k_rows[:, t - ((i, t) == (10, 5)), :]"),
        ("dst=outs[0][i * P : (i + 1) * P, :]", "dst=outs[0][(o := {8: 9, 9: 8}.get(i, i)) * P : (o + 1) * P, :]"),
    ],
)
def test_gradients_are_judged_whole_where_a_tile_stands_out(tmp_path, place, wrong):
    text = (Path(nki_hf.__file__).parent / "tasks" / "kernels" / "attention.py").read_text()
    assert text.count(place) == 1
    given = {"check": (256, 512), "at": (2048,), "name": "backward_baseline"}
    record = _judged(tmp_path, text.replace(place, wrong), "attention_backward", **given)
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "at size 2,048 d" in record["sentence"]


def test_a_maximum_of_another_tile_at_a_large_size_is_seen(tmp_path):
    wrong = SOFTMAX_OF_ROWS.replace("bias=top,", "bias=top if start < 512 else first,")
    assert wrong != SOFTMAX_OF_ROWS
    assert _judged(tmp_path, SOFTMAX_OF_ROWS, "softmax", check=(128, 384), at=(4096,))["passed"]
    record = _judged(tmp_path, wrong, "softmax", check=(128, 384), at=(4096,))
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "uneven_rows" in record["sentence"]
