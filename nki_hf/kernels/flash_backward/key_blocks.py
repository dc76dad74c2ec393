"""Key blocks of `flash_backward`: their loads and transposes, and the gradients of k and v that end them."""

from nki_hf.lang import nisa, nl

TILE = 128


def load_block(env, block):
    """Start the loads of a key block: k and v, a row per key, [TILE, key tiles, width]."""
    block["k"] = _load_keys(env["k"], block)
    block["v"] = _load_keys(env["v"], block)


def _load_keys(array, block):
    seqlen, width, keys = array.shape[2], array.shape[3], block["keys"]
    full, rest = keys // TILE, keys % TILE
    tile = nl.ndarray((TILE, (keys + TILE - 1) // TILE, width), dtype=array.dtype, buffer=nl.sbuf)
    offset = ((block["batch"] * array.shape[1] + block["head"]) * seqlen + block["key"]) * width
    if rest % 2 == 1:
        nisa.memset(dst=tile[0:TILE, full, 0:width], value=0.0, engine=nisa.engine.gpsimd)
    if full > 0:
        source = array.ap(pattern=[[width, TILE], [TILE * width, full], [1, width]], offset=offset)
        nisa.dma_copy(dst=tile[0:TILE, 0:full, 0:width], src=source)
    if rest > 0:
        source = array.ap(pattern=[[width, rest], [1, width]], offset=offset + full * TILE * width)
        nisa.dma_copy(dst=tile[0:rest, full, 0:width], src=source)
    return tile


def prepare_block(block):
    """K and v with head_dim on partitions, per piece of head_dim [depth, keys made even]."""
    block["k_turned"] = _turned_keys(block["k"], block["keys"])
    block["v_turned"] = _turned_keys(block["v"], block["keys"])
    block["v"] = None


def _turned_keys(tile, keys):
    width, even = tile.shape[2], keys + keys % 2
    pieces = []
    for d in range(0, width, TILE):
        depth = min(TILE, width - d)
        bank = nl.ndarray((depth, even), dtype=tile.dtype, buffer=nl.psum)
        for c in range((keys + TILE - 1) // TILE):
            rows = min(TILE, even - c * TILE)
            nisa.nc_transpose(
                dst=bank[0:depth, c * TILE : c * TILE + rows], data=tile[0:rows, c, d : d + depth], engine=nisa.engine.tensor
            )
        piece = nl.ndarray((depth, even), dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=piece, src=bank, engine=nisa.engine.vector)
        pieces.append(piece)
    return pieces


def close_block(env, block):
    """Write dk = softmax_scale * sum and dv, or hand them on to the next section of queries."""
    _write_keys(env, env["dk"], block, block["dk"], env["scale"], "dk")
    _write_keys(env, env["dv"], block, block["dv"], 1.0, "dv")
    block["dk"] = None
    block["dv"] = None


def _write_keys(env, array, block, result, scale, name):
    """Write `scale` times a block's sums, and those of the sections before; key tiles without steps have zeros."""
    keys, width = block["keys"], array.shape[3]
    tiles, first, last = (keys + TILE - 1) // TILE, env["section"] == 0, env["section"] == env["sections"] - 1
    dtype, target = array.dtype, array
    if not last:
        dtype, target = nl.float32, env["partial_" + name]
    tile = nl.ndarray((TILE, tiles, width), dtype=dtype, buffer=nl.sbuf)
    before = None
    if not first:
        before = nl.ndarray((TILE, tiles, width), dtype=nl.float32, buffer=nl.sbuf)
        _move_keys(env["partial_" + name], block, before, True)
    for c in range(tiles):
        rows = min(TILE, keys - c * TILE)
        place = tile[0:rows, c, 0:width]
        begun = result != None  # noqa: E711
        if begun:
            begun = block["begun"][c]
        if begun and first and name == "dk":
            nisa.activation(dst=place, op=nl.copy, data=result[0:rows, c, 0:width], scale=scale)
        elif begun and first:
            nisa.tensor_copy(dst=place, src=result[0:rows, c, 0:width], engine=nisa.engine.vector)
        elif begun:
            nisa.scalar_tensor_tensor(
                dst=place,
                data=result[0:rows, c, 0:width],
                op0=nl.multiply,
                operand0=scale,
                op1=nl.add,
                operand1=before[0:rows, c, 0:width],
            )
        elif first:
            nisa.memset(dst=place, value=0.0)
        else:
            nisa.tensor_copy(dst=place, src=before[0:rows, c, 0:width], engine=nisa.engine.vector)
    _move_keys(target, block, tile, False)


def _move_keys(array, block, tile, loads):
    """Copy a key block `[TILE, key tiles, width]` from HBM (`loads`) or to it."""
    seqlen, width, keys = array.shape[2], array.shape[3], block["keys"]
    full, rest = keys // TILE, keys % TILE
    offset = ((block["batch"] * array.shape[1] + block["head"]) * seqlen + block["key"]) * width
    if full > 0:
        place = array.ap(pattern=[[width, TILE], [TILE * width, full], [1, width]], offset=offset)
        if loads:
            nisa.dma_copy(dst=tile[0:TILE, 0:full, 0:width], src=place)
        else:
            nisa.dma_copy(dst=place, src=tile[0:TILE, 0:full, 0:width])
    if rest > 0:
        place = array.ap(pattern=[[width, rest], [1, width]], offset=offset + full * TILE * width)
        if loads:
            nisa.dma_copy(dst=tile[0:rest, full, 0:width], src=place)
        else:
            nisa.dma_copy(dst=place, src=tile[0:rest, full, 0:width])
