"""Edges of the mask.

Static bounds are affine in key and query: after exp, `affine_select` on GpSimd makes hidden probabilities 0, whatever they were.
Bounds per row lie along the free axis here. They are spread over the partitions once per block of query tiles and compared with
the key of each partition; the result, 0 where a key is seen and -HIDE where it is hidden, is shared by the heads of a group (of a
batch entry, with `keep_masks`) and added to the scores by a product with the identity, so that exp gives 0. A hidden score that
is inf or NaN stays so, and its row fails the certificate.
"""

from nki_hf.lang import nisa, nl

TILE = 128
HIDE = 1.0e30
MASKS_AHEAD = 2
"""Steps that the making of masks is ahead of their use: the Tensor engine should not wait for the Vector engine."""


def load_identity(env):
    """The identity whose product adds a mask to scores."""
    ones = nl.ndarray((TILE, TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    env["identity"] = nl.ndarray((TILE, TILE), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.affine_select(
        dst=env["identity"], pattern=[[-1, TILE]], offset=0, channel_multiplier=1, on_true_tile=ones, on_false_value=0.0,
        cmp_op=nl.equal,
    )  # fmt: skip


def make_masks(env, step, block):
    """The masks of the step's cells at an edge, as far as no earlier step has made them and their bounds are there."""
    bounds = block["bounds"]
    if not bounds["loaded"]:
        return
    if bounds["masks"] == None:  # noqa: E711
        _compared(env, bounds, block)
    for cell in step["cells"]:
        number = cell["key"] // TILE
        if len(cell["edges"]) > 0 and bounds["masks"][number] == None:  # noqa: E711
            bounds["masks"][number] = _mask(env, bounds, block, cell)


def add_mask(env, scores, block, cell):
    """Add the cell's mask to its scores [keys, columns], which are still being summed."""
    mask = block["bounds"]["masks"][cell["key"] // TILE]
    keys, begin, end = cell["keys"], cell["edge_begin"], cell["edge_end"]
    nisa.nc_matmul(
        dst=scores[0:keys, begin:end], stationary=env["identity"][0:keys, 0:keys], moving=mask[0:keys, begin:end]
    )


def _mask(env, bounds, block, cell):
    """bfloat16 [keys, columns]: 0 where seen, -HIDE (by the sign of the scale) where `key < lo` or `key >= hi`."""
    keys, begin, end = cell["keys"], cell["edge_begin"], cell["edge_end"]
    number = cell["key"] // TILE
    key = env["keys"][0:keys, number : number + 1]
    hide, join = -HIDE, nl.minimum
    if env["scale"] < 0.0:
        hide, join = HIDE, nl.maximum
    mask = nl.ndarray((keys, block["columns"]), dtype=nl.bfloat16, buffer=nl.sbuf)
    before = nl.ndarray((keys, block["columns"]), dtype=nl.bfloat16, buffer=nl.sbuf)
    target, other = mask[0:keys, begin:end], before[0:keys, begin:end]
    source = bounds["hi"][0:keys, begin:end]
    nisa.tensor_scalar(dst=target, data=source, op0=nl.less_equal, operand0=key, op1=nl.multiply, operand1=hide)
    source = bounds["lo"][0:keys, begin:end]
    nisa.tensor_scalar(dst=other, data=source, op0=nl.greater, operand0=key, op1=nl.multiply, operand1=hide)
    nisa.tensor_tensor(dst=target, data1=target, data2=other, op=join, engine=nisa.engine.vector)
    return mask


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
    column = (t * block["heads"] + g) * TILE
    tile = step["probs"][0 : cell["keys"], n, column : column + TILE]
    position = env["q_offset"] + (block["tile"] + t) * TILE
    window, ahead = env["window"], env["ahead"]
    if ahead != None:  # noqa: E711
        if cell["key"] + cell["keys"] > position + ahead:
            nisa.affine_select(
                dst=tile, pattern=[[1, TILE]], offset=position + ahead - cell["key"], channel_multiplier=-1, on_true_tile=tile,
                on_false_value=0.0, cmp_op=nl.greater,
            )  # fmt: skip
    if window != None:  # noqa: E711
        if cell["key"] <= position + TILE - 1 - window:
            nisa.affine_select(
                dst=tile, pattern=[[-1, TILE]], offset=cell["key"] - position + window, channel_multiplier=1, on_true_tile=tile,
                on_false_value=0.0, cmp_op=nl.greater,
            )  # fmt: skip


def _compared(env, load, block):
    """`lo` and `hi` of the block's columns, [TILE, columns], as they are compared: 16-bit where the keys allow it, which the Vector
    engine takes four times as fast.
    """
    heads, tiles = block["heads"], block["tiles"]
    load["masks"] = [None] * ((env["k"].shape[3] + TILE - 1) // TILE)
    dtype = nl.int32
    if env["k"].shape[3] < 65536:
        dtype = nl.uint16
    for name in ("lo", "hi"):
        edge = nl.ndarray((TILE, tiles, heads, TILE), dtype=dtype, buffer=nl.sbuf)
        for h in range(heads):
            nisa.tensor_copy(dst=edge[0:TILE, 0:tiles, h, 0:TILE], src=load["raw_" + name], engine=nisa.engine.vector)
        load[name] = edge.reshape((TILE, block["columns"]))
        load["raw_" + name] = None
