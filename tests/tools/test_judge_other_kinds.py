"""What a timed size does less of than growth leads to expect, by counts alone."""

import pytest

from nki_hf.tools.judging.other_kinds import Use, otherwise

T, BLOCK = 128, 512


def _backward(size, part=1.0, mask=1.0):
    """Elements of a causal kernel over tiles of 128 rows and blocks of up to 512 keys, by kind; of the last block of each tile
    some keys are hidden.
    """
    scores = hidden = blocks = 0
    for i in range(size // T):
        end = (i + 1) * T
        widths = [min(BLOCK, end - b) for b in range(0, end, BLOCK)]
        blocks += len(widths)
        scores += T * sum(widths)
        hidden += T * widths[-1]
    found = {
        ("nc_matmul",): (int(blocks * part), int(16 * scores * part)),
        ("exp",): (blocks, 4 * scores),
        ("affine_select",): (int(size // T * mask), int(2 * hidden * mask)),
    }
    kinds = enumerate(found.items(), 1)
    return {kind: Use("kernel.py", line, count, elements) for line, (kind, (count, elements)) in kinds if count}


@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192])
def test_a_mask_on_the_diagonal_grows_less_than_the_rest_of_a_kernel(size):
    """At the judged sizes a tile has one block, whose keys grow with the size; later they do not."""
    assert otherwise({256: _backward(256), 512: _backward(512)}, _backward(size), size, "kernel.py") is None


@pytest.mark.parametrize("size", [2048, 4096])
def test_what_is_left_out_of_the_rest_is_seen(size):
    judged = {256: _backward(256), 512: _backward(512)}
    assert "elements in nc_matmul" in otherwise(judged, _backward(size, part=0.5), size, "kernel.py")[0]
    for mask in (0, 0.5):
        assert "affine_select" in otherwise(judged, _backward(size, mask=mask), size, "kernel.py")[0]
