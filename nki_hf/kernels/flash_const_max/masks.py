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
    cell = step["cells"][n]
    keys, begin, end = cell["keys"], cell["begin"], cell["end"]
    mask = _mask(env, block, cell)
    tile = step["probs"][0:keys, n, begin:end]
    nisa.tensor_tensor(dst=tile, data1=tile, data2=mask[0:keys, begin:end], op=nl.minimum, engine=nisa.engine.vector)


def _mask(env, block, cell):
    """The cell's mask, made for the first head that needs it."""
    masks = _masks_of(env, block)
    number = cell["key"] // TILE
    if masks[number] == None:  # noqa: E711
        keys, begin, end = cell["keys"], cell["begin"], cell["end"]
        lower, upper = env["bounds"][0], env["bounds"][1]
        key = env["keys"][0:keys, number : number + 1]
        below = nl.ndarray((keys, block["columns"]), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=below[0:keys, begin:end], data=upper[0:keys, begin:end], op0=nl.greater, operand0=key, op1=nl.multiply,
            operand1=KEEP,
        )  # fmt: skip
        mask = nl.ndarray((keys, block["columns"]), dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=mask[0:keys, begin:end], data=lower[0:keys, begin:end], op0=nl.less_equal, operand0=key, op1=nl.multiply,
            operand1=below[0:keys, begin:end],
        )  # fmt: skip
        masks[number] = mask
    return masks[number]


def _masks_of(env, block):
    """The masks that lie ready for the block's query tiles, by key tile."""
    batch, tile = block["batch"], block["tile"]
    if env["lo"].shape[0] == 1:
        batch = 0
    before_batch, before_tile = env["masks_of"][0], env["masks_of"][1]
    if len(env["masks"]) == 0 or batch != before_batch or (tile != before_tile and not env["keep_masks"]):
        env["masks"] = [None] * len(env["spans"])
    env["masks_of"] = (batch, tile)
    if env["masks"][tile] == None:  # noqa: E711
        env["masks"][tile] = [None] * env["keys"].shape[1]
        env["bounds"] = _bounds(env, block, batch)
    return env["masks"][tile]


def _bounds(env, block, batch):
    """`lo` and `hi` of the block's columns on every partition, int32 [TILE, columns]; columns without a row see no key."""
    begin, heads, tiles = block["tile"] * TILE, block["heads"], block["tiles"]
    seqlen_q = env["lo"].shape[1]
    rows = min(tiles * TILE, seqlen_q - begin)
    lower = nl.ndarray((TILE, tiles, heads, TILE), dtype=nl.int32, buffer=nl.sbuf)
    upper = nl.ndarray((TILE, tiles, heads, TILE), dtype=nl.int32, buffer=nl.sbuf)
    if rows < tiles * TILE:
        nisa.memset(dst=lower[0:TILE, tiles - 1 : tiles, 0:heads, 0:TILE], value=0)
        nisa.memset(dst=upper[0:TILE, tiles - 1 : tiles, 0:heads, 0:TILE], value=0)
    for t in range(tiles):
        count = min(TILE, rows - t * TILE)
        offset = batch * seqlen_q + begin + t * TILE
        pattern = [[0, TILE], [0, heads], [1, count]]
        nisa.dma_copy(dst=lower[0:TILE, t, 0:heads, 0:count], src=env["lo"].ap(pattern=pattern, offset=offset))
        nisa.dma_copy(dst=upper[0:TILE, t, 0:heads, 0:count], src=env["hi"].ap(pattern=pattern, offset=offset))
    shape = (TILE, block["columns"])
    return lower.reshape(shape), upper.reshape(shape)
