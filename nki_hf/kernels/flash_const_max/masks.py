"""Edges of the mask: hidden cells of the probabilities become 0 after exp, whatever they were (inf and NaN included, where the
bounds are static).

Static bounds are affine in key and query: `affine_select` on GpSimd. Bounds per row lie along the free axis here: they are
spread over the partitions once per block of query tiles, and compared with the key of each partition. The result, 0 where hidden
and KEEP elsewhere, is shared by the heads of the group (of the batch entry, with `keep_masks`) and taken as a minimum: what was
inf becomes 0, not NaN.
"""

from nki_hf.lang import nisa, nl

TILE = 128
KEEP = 3.0e38


def hide_edges(env, step, block):
    """Zero the hidden cells of a step's probabilities."""
    cells = step["cells"]
    for n in range(len(cells)):
        cell = cells[n]
        edges = cell["edges"]
        if len(edges) == 0:
            continue
        if env["lo"] != None:  # noqa: E711
            _minimum(env, step, block, n)
            continue
        for t in edges:
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


def _minimum(env, step, block, n):
    """The cell's probabilities, at most KEEP, and 0 where hidden."""
    cell = step["cells"][n]
    keys, begin, end = cell["keys"], cell["begin"], cell["end"]
    mask = _mask(env, block, cell)
    tile = step["probs"][0:keys, n, begin:end]
    nisa.tensor_tensor(dst=tile, data1=tile, data2=mask[0:keys, begin:end], op=nl.minimum, engine=nisa.engine.vector)


def _mask(env, block, cell):
    """The cell's mask, made for the first head that needs it."""
    number = cell["key"] // TILE
    if block["bounds"]["masks"] == None:  # noqa: E711
        _compared(env, block["bounds"], block)
    masks = block["bounds"]["masks"]
    if masks[number] == None:  # noqa: E711
        keys, begin, end = cell["keys"], cell["begin"], cell["end"]
        key = env["keys"][0:keys, number : number + 1]
        lower, upper = block["bounds"]["lo"], block["bounds"]["hi"]
        mask = nl.ndarray((keys, block["columns"]), dtype=nl.bfloat16, buffer=nl.sbuf)
        above = nl.ndarray((keys, block["columns"]), dtype=nl.bfloat16, buffer=nl.sbuf)
        target, other = mask[0:keys, begin:end], above[0:keys, begin:end]
        source = upper[0:keys, begin:end]
        nisa.tensor_scalar(dst=target, data=source, op0=nl.greater, operand0=key, op1=nl.multiply, operand1=KEEP)
        source = lower[0:keys, begin:end]
        nisa.tensor_scalar(dst=other, data=source, op0=nl.less_equal, operand0=key, op1=nl.multiply, operand1=KEEP)
        nisa.tensor_tensor(dst=target, data1=target, data2=other, op=nl.minimum, engine=nisa.engine.vector)
        masks[number] = mask
    return masks[number]


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
