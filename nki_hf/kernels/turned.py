"""A block with a row of queries per partition, turned: its keys on partitions, in tiles of 128."""

from nki_hf.lang import nisa, nl

TILE = 128


def turn(block, width):
    """Transposes of a block [rows, width or more], [TILE, key tiles, rows] in PSUM.

    Of 16 bits, its rows are even: transposes are written to PSUM in whole words of 4 bytes.
    """
    rows, tiles = block.shape[0], (width + TILE - 1) // TILE
    bank = nl.ndarray((TILE, tiles, rows), dtype=block.dtype, buffer=nl.psum)
    for c in range(tiles):
        keys = min(TILE, width - c * TILE)
        source = block[0:rows, c * TILE : c * TILE + keys]
        nisa.nc_transpose(dst=bank[0:keys, c, 0:rows], data=source, engine=nisa.engine.tensor)
    return bank


def copy_turned(bank, width):
    """What `turn` made, in SBUF; beyond the last key nothing is written."""
    rows = bank.shape[2]
    turned = nl.ndarray(bank.shape, dtype=bank.dtype, buffer=nl.sbuf)
    full, rest = width // TILE, width % TILE
    if full > 0:
        nisa.activation(dst=turned[0:TILE, 0:full, 0:rows], op=nl.copy, data=bank[0:TILE, 0:full, 0:rows])
    if rest > 0:
        nisa.activation(dst=turned[0:rest, full, 0:rows], op=nl.copy, data=bank[0:rest, full, 0:rows])
    return turned
