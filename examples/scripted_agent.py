"""A stand-in for an agent of `nki_hf loop`: a fixed list of edits, no model and no search. It shows the interface.

It starts from a naive attention kernel in which every intermediate goes through HBM, and makes, one edit per round, the changes
of the published ladder up to v7 (nki_hf/ladder). It finds the next edit by looking at its parent's source.

    nki_hf loop --agent "python examples/scripted_agent.py" --rounds 5 --run out/run \
        --task attention_unscaled --layout q=ds,k=ds,v=ds --chip trn1
"""

from __future__ import annotations

import json
import sys

NAIVE = '''"""Attention of one head, softmax(q.T @ k) @ v.T; q, k, v [128, seqlen], out [seqlen, 128]."""

import nki
import nki.isa as nisa
import nki.language as nl

TQ, TK = 128, 512
KEEP = nl.float32


def load(tensor):
    tile = nl.ndarray(tensor.shape, tensor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=tensor)
    return tile


def through_hbm(tile):
    """The tile, stored to HBM and loaded again."""
    there = nl.ndarray(tile.shape, tile.dtype, buffer=nl.hbm)
    nisa.dma_copy(dst=there, src=tile)
    return load(there)


def turned(tile, dtype):
    """The transpose of a [128, 128] tile."""
    psum = nl.ndarray((TQ, TQ), tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=psum, data=tile)
    sbuf = nl.ndarray((TQ, TQ), dtype, buffer=nl.sbuf)
    nisa.activation(dst=sbuf, op=nl.copy, data=psum)
    return sbuf


def softmax(scores):
    """exp(scores - max) as [128, seqlen] tiles of 512, and 1 / sum."""
    count = len(scores)
    maxima = nl.ndarray((TQ, count), nl.float32, buffer=nl.sbuf)
    for j in range(count):
        nisa.tensor_reduce(dst=maxima[:, j : j + 1], op=nl.maximum, data=scores[j], axis=1)
    top = nl.ndarray((TQ, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=maxima, axis=1)
    exps = []
    sums = nl.ndarray((TQ, count), nl.float32, buffer=nl.sbuf)
    for j in range(count):
        shifted = nl.ndarray((TQ, TK), nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=shifted, data=scores[j], op0=nl.subtract, operand0=top)
        shifted = through_hbm(shifted)
        power = nl.ndarray((TQ, TK), nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=power, op=nl.exp, data=shifted)
        power = through_hbm(power)
        nisa.tensor_reduce(dst=sums[:, j : j + 1], op=nl.add, data=power, axis=1)
        exps.append(power)
    total = nl.ndarray((TQ, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=sums, axis=1)
    nisa.reciprocal(dst=total, data=total)
    return exps, total


@nki.jit
def attention(q, k, v):
    d, seqlen = q.shape
    out = nl.ndarray((seqlen, d), q.dtype, buffer=nl.shared_hbm)
    qs, ks, vs = load(q), load(k), load(v)
    v_keys = [turned(vs[:, t * TQ : (t + 1) * TQ], KEEP) for t in range(seqlen // TQ)]
    for i in range(seqlen // TQ):
        scores = []
        for j in range(seqlen // TK):
            tile = nl.ndarray((TQ, TK), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=tile, stationary=qs[:, i * TQ : (i + 1) * TQ], moving=ks[:, j * TK : (j + 1) * TK])
            scores.append(tile)
        exps, inverse = softmax(scores)
        probs = []
        for power in exps:
            part = nl.ndarray((TQ, TK), nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=part, data=power, op0=nl.multiply, operand0=inverse)
            probs.append(through_hbm(part))
        acc = nl.ndarray((TQ, d), nl.float32, buffer=nl.psum)
        for t in range(seqlen // TQ):
            tile = probs[t * TQ // TK][:, t * TQ % TK : t * TQ % TK + TQ]
            nisa.nc_matmul(dst=acc, stationary=turned(tile, KEEP), moving=v_keys[t])
        done = nl.ndarray((TQ, d), q.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=done, src=acc)
        nisa.dma_copy(dst=out[i * TQ : (i + 1) * TQ, :], src=done)
    return out
'''

EDITS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "v4: intermediates stay in SBUF; nothing but the inputs and the output meets HBM",
        (
            (NAIVE[NAIVE.index("def through_hbm") : NAIVE.index("def turned")], ""),
            ("        shifted = through_hbm(shifted)\n", ""),
            ("        power = through_hbm(power)\n", ""),
            ("probs.append(through_hbm(part))", "probs.append(part)"),
        ),
    ),
    (
        "v5: the division is delayed to the output, which is seqlen / head_dim times smaller than the probabilities",
        (
            (
                NAIVE[NAIVE.index("        probs = []") : NAIVE.index("            probs.append")]
                + "            probs.append(part)\n",
                "        probs = exps\n",
            ),
            (
                "        nisa.tensor_copy(dst=done, src=acc)\n",
                "        nisa.tensor_scalar(dst=done, data=acc, op0=nl.multiply, operand0=inverse)\n",
            ),
        ),
    ),
    (
        "v6: exp reads PSUM with the maximum as its bias and sums its row: one instruction in place of three",
        (
            ("data=maxima, axis=1)", "data=maxima, axis=1, negate=True)"),
            (
                "        shifted = nl.ndarray((TQ, TK), nl.float32, buffer=nl.sbuf)\n"
                "        nisa.tensor_scalar(dst=shifted, data=scores[j], op0=nl.subtract, operand0=top)\n",
                "",
            ),
            (
                "        nisa.activation(dst=power, op=nl.exp, data=shifted)\n"
                "        nisa.tensor_reduce(dst=sums[:, j : j + 1], op=nl.add, data=power, axis=1)\n",
                "        nisa.activation_reduce(\n"
                "            dst=power, op=nl.exp, data=scores[j], bias=top, reduce_op=nl.add, reduce_res=sums[:, j : j + 1]\n"
                "        )\n",
            ),
        ),
    ),
    (
        "v7: probabilities and V in bfloat16: transposes and the second product at the Tensor engine's 16-bit rate",
        (
            ("KEEP = nl.float32", "KEEP = nl.bfloat16"),
            ("power = nl.ndarray((TQ, TK), nl.float32", "power = nl.ndarray((TQ, TK), KEEP"),
        ),
    ),
)


def steps() -> list[tuple[str, str]]:
    """Note and source of every step, the naive kernel first."""
    found = [("v3: every intermediate goes through HBM", NAIVE)]
    for note, changes in EDITS:
        source = found[-1][1]
        for old, new in changes:
            if old not in source:
                raise ValueError(f"the edit {note!r} does not fit its parent: {old!r} is not there.")
            source = source.replace(old, new)
        found.append((note, source))
    return found


def main() -> None:
    """Read a request, write the step after the parent's; the last one again where there is none."""
    parent = json.load(sys.stdin)["parent"]
    known = steps()
    place = next((n for n, (_, source) in enumerate(known) if parent is not None and source == parent["source"]), -1)
    note, source = known[min(place + 1, len(known) - 1)]
    print(f"{note}\n\n```python\n{source}```")


if __name__ == "__main__":
    main()
