"""At the timed size one number or place that is no longer what it follows from is seen, in whatever order a kernel works."""

import pytest

import nki_hf

HEADS = '''
import random

import nki
import nki.isa as nisa
import nki.language as nl

T, W = 128, 256


def sbuf(shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf)


def turned(tile, into):
    bank = nl.ndarray((tile.shape[1], tile.shape[0]), tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=tile)
    nisa.tensor_copy(dst=into, src=bank)


def loaded(source):
    tile = sbuf(source.shape, source.dtype)
    nisa.dma_copy(dst=tile, src=source)
    return tile


def masked(scores, first, w):
    nisa.affine_select(
        dst=scores, pattern=[[-1, w]], channel_multiplier=1, on_true_tile=scores, on_false_value=-3.0e38,
        cmp_op=nl.greater_equal, offset=first,
    )


def order(h, i, items):
    return items


@nki.jit
def attention(q, k, v):
    """Causal attention of heads over blocks of 256 keys; q [h, s, d], k and v [h / 2, s, d]."""
    h, s, d = q.shape
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    for x in order(0, 0, list(range(h))):
        kt, vs = sbuf((d, s), k.dtype), sbuf((T, s // T, d), v.dtype)
        for t in range(s // T):
            turned(loaded(k[x // 2, t * T : (t + 1) * T, :]), kt[:, t * T : (t + 1) * T])
            nisa.dma_copy(dst=vs[:, t, :], src=v[x // 2, t * T : (t + 1) * T, :])
        for i in order(x, 0, list(range(s // T))):
            qt = sbuf((d, T), q.dtype)
            turned(loaded(q[x, i * T : (i + 1) * T, :]), qt)
            top, total, acc = sbuf((T, 1)), sbuf((T, 1)), sbuf((T, d))
            end = (i + 1) * T
            for n, b in enumerate(order(x, i, list(range(0, end, W)))):
                w = min(W, end - b)
                product = nl.ndarray((T, w), nl.float32, buffer=nl.psum)
                nisa.nc_matmul(dst=product, stationary=qt, moving=kt[:, b : b + w])
                scores = sbuf((T, w))
                nisa.tensor_scalar(dst=scores, data=product, op0=nl.multiply, operand0=d**-0.5)
                if b + w > i * T:
                    masked(scores, i * T - b, w)
                new, negative, correction, sums = [sbuf((T, 1)) for _ in range(4)]
                nisa.tensor_reduce(dst=new, op=nl.maximum, data=scores, axis=1)
                if n:
                    nisa.tensor_tensor(dst=new, data1=top, data2=new, op=nl.maximum)
                nisa.tensor_scalar(dst=negative, data=new, op0=nl.multiply, operand0=-1.0)
                probs, part = sbuf((T, w), nl.bfloat16), nl.ndarray((T, d), nl.float32, buffer=nl.psum)
                nisa.activation_reduce(dst=probs, op=nl.exp, data=scores, bias=negative, reduce_op=nl.add, reduce_res=sums)
                for t in range(w // T):
                    probs_t = sbuf((T, T), nl.bfloat16)
                    turned(probs[:, t * T : (t + 1) * T], probs_t)
                    nisa.nc_matmul(dst=part, stationary=probs_t, moving=vs[:, b // T + t, :])
                if n:
                    nisa.activation(dst=correction, op=nl.exp, data=top, bias=negative)
                    for into, more in ((total, sums), (acc, part)):
                        nisa.scalar_tensor_tensor(
                            dst=into, data=into, op0=nl.multiply, operand0=correction, op1=nl.add, operand1=more
                        )
                else:
                    nisa.tensor_copy(dst=total, src=sums)
                    nisa.tensor_copy(dst=acc, src=part)
                nisa.tensor_copy(dst=top, src=new)
            inverse, done = sbuf((T, 1)), sbuf((T, d), q.dtype)
            nisa.reciprocal(dst=inverse, data=total)
            nisa.tensor_scalar(dst=done, data=acc, op0=nl.multiply, operand0=inverse)
            nisa.dma_copy(dst=out[x, i * T : (i + 1) * T, :], src=done)
    return out
'''
"""Heads, tiles and blocks of keys are gone over in an `order`."""
ZIG_ZAG = "    return items[::-1] if (h + i) % 2 else items"
"""Every second tile of a head, and every second head, goes backwards."""
TURNED = "    return [0, 1, 3, 2] if len(items) == 4 and not (h or i) else items[::-1] if (h + i) % 2 else items"
SHUFFLED = "    random.Random(37 * h + i).shuffle(items)\n    return items"
BY_IOTA = """    places, keep = sbuf((T, w)), sbuf((T, w))
    nisa.iota(dst=places, pattern=[[-1, w]], offset=first, channel_multiplier=1)
    nisa.tensor_scalar(dst=keep, data=places, op0=nl.less, operand0=0.0, op1=nl.multiply, operand1=-3.0e38)
    nisa.tensor_tensor(dst=scores, data1=scores, data2=keep, op=nl.add)
"""
"""The mask by numbers that an instruction makes from nothing, in place of `affine_select`."""


def _in_order(text, order):
    found = text.replace("    return items\n", f"{order}\n")
    assert found != text
    return found


def _by_iota(text):
    begin = text.index("    nisa.affine_select(")
    return text[:begin] + BY_IOTA + text[text.index("\n\ndef order") :]


def _wrong_in(text, place, wrong, head, tile):
    """The kernel with another text in one tile of one head of the timed size."""
    assert text.count(place) == 1
    return text.replace(place, wrong.replace("HERE", f"((s, x, i) == (2048, {head}, {tile}))"))


def _judged(folder, text):
    file = folder / "kernel.py"
    file.write_text(text)
    return nki_hf.judge(file, "attention_gqa", chip=("trn2",), check=(256, 512), at=(2048,))


MASK, VALUES, KEYS = "masked(scores, i * T - b, w)", "moving=vs[:, b // T + t, :]", "moving=kt[:, b : b + w]"


@pytest.mark.parametrize(
    ("order", "place", "wrong", "head", "tile"),
    [
        (TURNED, MASK, "masked(scores, i * T - b - HERE, w)", 3, 15),  # the last tile of a head
        (ZIG_ZAG, MASK, "masked(scores, i * T - b - HERE, w)", 2, 9),
        (SHUFFLED, MASK, "masked(scores, i * T - b + HERE, w)", 1, 10),
        # As many blocks as in the other tiles, each read once, but two at each other's place:
        (SHUFFLED, VALUES, "moving=vs[:, (b ^ 768 if HERE and b in (256, 512) else b) // T + t, :]", 2, 9),
        (SHUFFLED, KEYS, "moving=kt[:, (u := b ^ 768 if HERE and b in (256, 512) else b) : u + w]", 1, 13),
        (ZIG_ZAG, KEYS, "moving=kt[:, (u := b ^ 768 if HERE and b in (256, 512) else b) : u + w]", 1, 12),
    ],
)
def test_a_number_or_place_that_leaves_its_law_is_seen_in_any_order(tmp_path, order, place, wrong, head, tile):
    record = _judged(tmp_path, _wrong_in(_in_order(HEADS, order), place, wrong, head, tile))
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert f"of rows {tile * 128:,} to {tile * 128 + 127:,} in [{head}]" in record["sentence"], record["sentence"]


@pytest.mark.parametrize(("head", "tile"), [(1, 11), (2, 4)])
def test_a_number_that_is_made_from_nothing_is_compared_where_it_is_used(tmp_path, head, tile):
    right = _by_iota(_in_order(HEADS, SHUFFLED))
    record = _judged(tmp_path, _wrong_in(right, MASK, "masked(scores, i * T - b + HERE, w)", head, tile))
    assert (record["passed"], record["stage"]) == (False, "times"), record["sentence"]
    assert f"of rows {tile * 128:,} to {tile * 128 + 127:,} in [{head}]" in record["sentence"], record["sentence"]


@pytest.mark.parametrize("order", [ZIG_ZAG, SHUFFLED])
def test_right_kernels_pass_in_any_order(tmp_path, order):
    record = _judged(tmp_path, _by_iota(_in_order(HEADS, order)))
    assert record["passed"], record["sentence"]
    assert _judged(tmp_path, _in_order(HEADS, order))["passed"]
