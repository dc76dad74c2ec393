"""Edges of the mask.

Static bounds are affine in key and query: after exp, `affine_select` on GpSimd makes hidden probabilities 0, whatever they
were.

Bounds per row are compared with key numbers where a row is a partition: mask[queries, keys], 0 where a key is seen and
-HIDE where it is hidden, which is where it is further from the middle of the seen keys than half their number. As the
stationary operand of a product with twice the identity it is turned and added to the scores in one go. Twice HIDE is beyond
float32, so that every finite score becomes -inf, however large it is, and exp gives 0. The heads of a group share it (those of
a batch entry, by `share_masks`). A hidden score that is inf or NaN becomes NaN, and its row fails the certificate.
"""

from nki_hf.lang import nisa, nl

TILE = 128
HIDE = 3.3895313892515355e38
"""bfloat16's largest number."""
WIDE = 1024
"""Keys of one mask: many, because an instruction of the Vector engine costs as much as 240 of the keys that it compares."""
MASKS_AHEAD = 8
"""Steps that the making of masks is ahead of their use, one at a time: the Tensor engine should not wait for the Vector
engine."""


def load_identity(env):
    """Twice the identity, and the even numbers below 2 * WIDE on every partition, 16-bit: the Vector engine compares those four
    times as fast.
    """
    twos = nl.ndarray((TILE, TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=twos, value=2.0)
    env["twice_identity"] = nl.ndarray((TILE, TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.affine_select(
        dst=env["twice_identity"],
        pattern=[[-1, TILE]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=twos,
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    env["numbers"] = nl.ndarray((TILE, WIDE), dtype=nl.int16, buffer=nl.sbuf)
    nisa.iota(dst=env["numbers"], pattern=[[2, WIDE]], offset=0, channel_multiplier=0)


def make_masks(env, step, block, most):
    """Make up to `most` masks that the step's cells need and no earlier step has made; returns how many more may be made."""
    rows = block["rows"]
    if rows["edges"] == None:  # noqa: E711
        return most
    for cell in step["cells"]:
        for t in cell["edges"]:
            wide = cell["key"] // WIDE
            masks = block["masks"][t]
            if masks[wide] == None and most > 0:  # noqa: E711
                masks[wide] = _mask(env, rows, block, t, wide)
                most = most - 1
    return most


def add_masks(env, scores, block, cell):
    """Add the masks of the cell's edges to its part of a step's scores [keys, columns], which are still being summed."""
    heads, keys, before = block["heads"], cell["keys"], cell["at"] - cell["begin"]
    for t in cell["edges"]:
        mask = block["masks"][t][cell["key"] // WIDE]
        place = cell["key"] - mask["key"]
        for g in range(heads):
            column = before + (t * heads + g) * TILE
            nisa.nc_matmul(
                dst=scores[0:keys, column : column + TILE],
                stationary=mask["tile"][0:TILE, place : place + keys],
                moving=env["twice_identity"],
            )


def _mask(env, rows, block, t, wide):
    """bfloat16 [TILE queries, keys] of up to WIDE keys, and the first of them: -HIDE, by the sign of the scale, where `key
    < lo` or `key >= hi`, else 0.
    """
    span, start = env["spans"][block["tile"] + t], wide * WIDE
    first, last = max(span[0], start), min((span[1] + TILE - 1) // TILE * TILE, start + WIDE)
    hide = -HIDE
    if env["scale"] < 0.0:
        hide = HIDE
    seen = block["relative"]
    if seen[wide] == None:  # noqa: E711
        seen[wide] = _seen(rows, block, start)
    middle, size = seen[wide]
    numbers = env["numbers"][0:TILE, first - start : last - start]
    distance = nl.ndarray((TILE, last - first), dtype=nl.int16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=distance, data=numbers, op0=nl.subtract, operand0=middle[0:TILE, t : t + 1], op1=nl.abs, operand1=0.0
    )
    mask = nl.ndarray((TILE, last - first), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=mask, data=distance, op0=nl.greater, operand0=size[0:TILE, t : t + 1], op1=nl.multiply, operand1=hide
    )
    return {"tile": mask, "key": first}


def _seen(rows, block, start):
    """Of the WIDE keys from `start` on, `lo` to `hi - 1` are seen: float32 [TILE, query tiles] of lo + hi - 1 and hi - lo - 1,
    twice the middle and twice the distance of its ends.
    """
    tiles, first_tile = block["tiles"], block["tile"] - rows["begin"]
    edges = nl.ndarray((TILE, 2, tiles), dtype=nl.float32, buffer=nl.sbuf)
    source = rows["edges"][0:TILE, 0:2, first_tile : first_tile + tiles]
    nisa.tensor_scalar(dst=edges, data=source, op0=nl.subtract, operand0=float(start), op1=nl.maximum, operand1=0.0)
    nisa.tensor_scalar(dst=edges, data=edges, op0=nl.minimum, operand0=float(WIDE))
    middle = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
    size = nl.ndarray((TILE, tiles), dtype=nl.float32, buffer=nl.sbuf)
    lower, upper = edges[0:TILE, 0, 0:tiles], edges[0:TILE, 1, 0:tiles]
    nisa.scalar_tensor_tensor(dst=middle, data=lower, op0=nl.subtract, operand0=1.0, op1=nl.add, operand1=upper)
    nisa.scalar_tensor_tensor(dst=size, data=lower, op0=nl.add, operand0=1.0, op1=nl.subtract, operand1=upper, reverse1=True)
    return middle, size


def hide_edges(env, step, block):
    """Zero the hidden probabilities of a step whose bounds are static."""
    cells = step["cells"]
    for n in range(len(cells)):
        for t in cells[n]["edges"]:
            for g in range(block["heads"]):
                _select(env, step, block, n, t, g)


def _select(env, step, block, n, t, g):
    """Keep key `key + p` for query row `row + x` where `q_offset + row + x - window < key + p < q_offset + row + x + ahead`."""
    cell = step["cells"][n]
    column = cell["to"] - cell["begin"] + (t * block["heads"] + g) * TILE
    tile = step["exp"]["probs"][0 : cell["keys"], column : column + TILE]
    position = env["q_offset"] + (block["tile"] + t) * TILE
    window, ahead = env["window"], env["ahead"]
    if ahead != None:  # noqa: E711
        if cell["key"] + cell["keys"] > position + ahead:
            nisa.affine_select(
                dst=tile,
                pattern=[[1, TILE]],
                offset=position + ahead - cell["key"],
                channel_multiplier=-1,
                on_true_tile=tile,
                on_false_value=0.0,
                cmp_op=nl.greater,
            )
    if window != None:  # noqa: E711
        if cell["key"] <= position + TILE - 1 - window:
            nisa.affine_select(
                dst=tile,
                pattern=[[-1, TILE]],
                offset=cell["key"] - position + window,
                channel_multiplier=1,
                on_true_tile=tile,
                on_false_value=0.0,
                cmp_op=nl.greater,
            )
