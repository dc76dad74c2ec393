"""At the timed size a kernel must use all that it loads, as it does where values are judged."""

import pytest
from judged_kernels import RIGHT

import nki_hf

KERNEL = RIGHT.replace("for j in range(i + 1):", "for j in range(tiles):").replace("if j == i:", "if False:")
PLACES = {
    "the first tile of values": ("vs[:, j, :]", "vs[:, 0 if s > 2048 else j, :]"),
    "the first tile of queries": ("qs[:, i * T : (i + 1) * T]", "qs[:, 0:T] if s > 2048 else qs[:, i * T : (i + 1) * T]"),
    "the first half of the keys": (
        "for j in range(tiles):",
        "for n in range(tiles):\n            j = n // 2 if s > 2048 else n",
    ),
}


def _judged(folder, text):
    file = folder / "kernel.py"
    file.write_text(text)
    return nki_hf.judge(file, "attention", layout="q=ds,k=ds,v=sd", check=(256, 512), at=(4096,), chip=("trn2",))


def test_the_right_kernel_passes(tmp_path):
    record = _judged(tmp_path, KERNEL)
    assert record["passed"], record["sentence"]


@pytest.mark.parametrize("how", PLACES)
def test_a_kernel_that_uses_a_part_of_what_it_loads_fails(how, tmp_path):
    right, wrong = PLACES[how]
    assert right in KERNEL
    record = _judged(tmp_path, KERNEL.replace(right, wrong))
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "of what it loads of an input, and 100% at size 512" in record["sentence"]
