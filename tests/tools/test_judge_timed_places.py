"""At the timed size a kernel must use all that it loads and computes, as it does where values are judged."""

import pytest
from judged_kernels import RIGHT
from judged_products import MATMUL, ROWS_TASK

import nki_hf

KERNEL = RIGHT.replace("for j in range(i + 1):", "for j in range(tiles):").replace("if j == i:", "if False:")
LOADS = {
    "the first tile of values": ("vs[:, j, :]", "vs[:, 0 if s > 512 else j, :]"),
    "the first tile of queries": ("qs[:, i * T : (i + 1) * T]", "qs[:, 0:T] if s > 512 else qs[:, i * T : (i + 1) * T]"),
    "the first half of the keys": (
        "for j in range(tiles):",
        "for n in range(tiles):\n            j = n // 2 if s > 512 else n",
    ),
}
MADE = {
    "probabilities of the first tile": (
        "nisa.tensor_copy(dst=probs_t, src=turned)",
        "nisa.tensor_copy(dst=probs_t, src=turned)\n            kept = probs_t if s <= 512 or j == 0 else kept",
        "stationary=probs_t",
        "stationary=kept",
    ),
    "the first of the tiles of one allocation": (
        "probs_t = nl.ndarray((T, T), dtype=nl.bfloat16, buffer=nl.sbuf)",
        "every = nl.ndarray((T, tiles, T), dtype=nl.bfloat16, buffer=nl.sbuf) if j == 0 else every\n"
        "            probs_t = every[:, j, :]",
        "stationary=probs_t",
        "stationary=every[:, 0 if s > 512 else j, :]",
    ),
    "every eighth tile of probabilities for nothing": (
        "nisa.tensor_copy(dst=probs_t, src=turned)",
        "nisa.tensor_copy(dst=probs_t, src=turned)\n            kept = probs_t if s <= 512 or j % 8 < 7 else kept",
        "stationary=probs_t",
        "stationary=kept",
    ),
}


def _judged(folder, *changes):
    text = KERNEL
    for right, wrong in zip(changes[::2], changes[1::2], strict=True):
        assert right in text
        text = text.replace(right, wrong)
    file = folder / "kernel.py"
    file.write_text(text)
    return nki_hf.judge(file, "attention", layout="q=ds,k=ds,v=sd", check=(256, 512), at=(2048,), chip=("trn2",))


@pytest.mark.parametrize("how", [(), *([*change[:3], change[3].replace("512", "1 << 20")] for change in MADE.values())])
def test_right_kernels_pass(how, tmp_path):
    record = _judged(tmp_path, *[text.replace("512", f"{1 << 20}") for text in how])
    assert record["passed"], record["sentence"]
    assert not any("judged there" in warning for warning in record["warnings"])


@pytest.mark.parametrize("how", LOADS)
def test_a_kernel_that_uses_a_part_of_what_it_loads_fails(how, tmp_path):
    record = _judged(tmp_path, *LOADS[how])
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "at size 2,048 the kernel uses" in record["sentence"]
    assert "and there out is wrong" in record["sentence"]


@pytest.mark.parametrize("how", MADE)
def test_a_kernel_that_uses_a_part_of_what_it_computes_fails(how, tmp_path):
    record = _judged(tmp_path, *MADE[how])
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "at size 2,048 the kernel" in record["sentence"]
    assert "and there out is wrong" in record["sentence"]


HELPER = """def tile(*shape):
    return nl.ndarray(shape, dtype=nl.bfloat16, buffer=nl.sbuf)


@nki.jit"""
HALVES = """        half = tile(128, 2048)
        nisa.activation(dst=half, op=nl.copy, data=done)
        nisa.tensor_tensor(dst=done, data1=done, data2=ones, op=nl.multiply)
        nisa.tensor_copy(dst=done[:, 0:1024], src=half[:, 0:1024])
        nisa.dma_copy(dst=out"""
ONES = """    ones = tile(128, 2048)
    nisa.memset(dst=ones, value=1.0)
    for i in range(n // 128):"""
SPARE = """        squares = tile(128, 2048)
        nisa.activation(dst=squares, op=nl.square, data=done)
        nisa.dma_copy(dst=out"""


def _with_a_helper(folder, *change, more=SPARE):
    """The product whose tiles one line allocates, of which more are for nothing the more rows there are."""
    text = MATMUL.replace("@nki.jit", HELPER).replace("        nisa.dma_copy(dst=out", more)
    for shape, dtype in (("128, 4, 2048", "b.dtype"), ("128, 4, 128", "a.dtype"), ("128, 2048", "a.dtype")):
        text = text.replace(f"nl.ndarray(({shape}), dtype={dtype}, buffer=nl.sbuf)", f"tile({shape})")
    assert text.count("nl.sbuf") == 1
    (folder / "kernel.py").write_text(text.replace(*change) if change else text)
    (folder / "task.py").write_text(ROWS_TASK.format(part=""))
    return nki_hf.judge(folder / "kernel.py", str(folder / "task.py"), check=(128, 256), at=(4096,), chip=("trn2",))


def test_tiles_that_one_line_allocates_are_compared_by_shape(tmp_path):
    record = _with_a_helper(tmp_path)
    assert record["passed"], record["sentence"]
    assert not any("judged there" in warning for warning in record["warnings"])
    wrong = _with_a_helper(tmp_path, "right[:, k, j * 512", "right[:, k if n < 4096 else 0, j * 512")
    assert (wrong["passed"], wrong["stage"]) == (False, "times"), wrong["sentence"]
    assert "at size 4,096 the kernel uses 25% of" in wrong["sentence"]


def test_tiles_of_one_shape_that_one_line_allocates_are_compared_by_the_lines_that_use_them(tmp_path):
    """One tile is used wholly, and one of every 128 rows by half: the share of both together falls with the rows."""
    loop = ONES.splitlines()[-1]
    record = _with_a_helper(tmp_path, loop, ONES, more=HALVES)
    assert record["passed"], record["sentence"]
    assert not any("judged there" in warning for warning in record["warnings"])


def test_tiles_of_one_line_that_are_used_less_than_its_others_of_their_kind_are_counted(tmp_path):
    parts = """for c in range(2):
            at = c if n < 4096 else 0
            nisa.tensor_copy(dst=done[:, c * 512 : c * 512 + 512], src=half[:, at * 512 : at * 512 + 512])"""
    less = HALVES.replace("nisa.tensor_copy(dst=done[:, 0:1024], src=half[:, 0:1024])", parts)
    assert less != HALVES
    record = _with_a_helper(tmp_path, ONES.splitlines()[-1], ONES, more=less)
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "the kernel uses 25% of the 32 tiles allocated at line 8, and 50% at the sizes of --check" in record["sentence"]
