"""Where a kernel is another program on a chip that is only timed, its values are judged there as well."""

import pytest

import nki_hf

SOFTMAX = """
import nki
import nki.isa as nisa
import nki.language as nl

P = 128


@nki.jit
def softmax(x):
    rows, width = x.shape
    other = nisa.get_nc_version() == nisa.nc_version.gen2{and_large}
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, P):
        source = {source}
        tile = nl.ndarray((P, width), {dtype}, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[source : source + P, :])
        top = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        if {top}:
            nisa.memset(dst=top, value=0.0)
        else:
            nisa.tensor_reduce(dst=top, op=nl.maximum, data=tile, axis=1, negate=True)
        total = nl.ndarray((P, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(dst=tile, op=nl.exp, data=tile, bias=top, reduce_op=nl.add, reduce_res=total)
        nisa.reciprocal(dst=total, data=total)
        if {engine}:
            nisa.activation(dst=tile, op=nl.copy, data=tile, scale=total)
        else:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[start : start + P, :], src=tile)
    return out
"""
RIGHT = {"source": "start", "dtype": "nl.float32", "top": "False", "engine": "other", "and_large": ""}
WRONG = {
    "no maximum": {"top": "other"},
    "16 bits": {"dtype": "nl.bfloat16 if other else nl.float32"},
    "tiles elsewhere": {"source": "rows - P - start if other else start"},
}


def _judged(folder, chip, **changes):
    file = folder / "kernel.py"
    file.write_text(SOFTMAX.format(**{**RIGHT, **changes}))
    return nki_hf.judge(file, "softmax", check=(128, 384), at=(1024,), chip=chip)


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_on_another_chip_fails(what, tmp_path):
    assert _judged(tmp_path, ("trn2",), **WRONG[what])["passed"]
    record = _judged(tmp_path, ("trn2", "trn1"), **WRONG[what])
    assert (record["passed"], record["stage"]) == (False, "values"), record["sentence"]
    assert "on trn1, where the kernel is another program than on trn2" in record["sentence"]


def test_what_is_wrong_there_at_a_timed_size_alone_fails(tmp_path):
    record = _judged(tmp_path, ("trn2", "trn1"), top="other", and_large=" and rows > 512")
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert "late_maximum" in record["sentence"]


@pytest.mark.parametrize("engine", ["other", "False"])
def test_a_kernel_that_uses_other_engines_on_another_chip_passes(engine, tmp_path):
    record = _judged(tmp_path, ("trn2", "trn1", "trn3"), engine=engine)
    assert record["passed"], record["sentence"]
    assert [row["chip"] for row in record["times"]] == ["trn2", "trn1", "trn3"]
