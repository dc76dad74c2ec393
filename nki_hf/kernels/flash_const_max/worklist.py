"""The work list of one core: its query tiles that failed the certificate, computed again by one loop at run time."""

from nki_hf.kernels.flash_const_max.exact import exact_tile
from nki_hf.lang import nisa, nl

SINCE = "0.6-tracer"
"""The front end that takes a loop at run time with its body; the entry without a loop calls nothing of this."""
TILE = 128


def run_worklist(env):
    """Compute every flagged tile with its exact row maximum (`env["flags"]` and `env["places"]`: see places.py)."""
    slots = env["slots"]
    if slots == 0:
        return
    for name in ("q", "k", "v", "out", "lse", "row_shift", "row_sum", "out_rest", "lo", "hi", "bias", "sink"):
        if env[name] != None:  # noqa: E711
            size = 1
            for axis in env[name].shape:
                size = size * axis
            env["flat_" + name] = env[name].reshape((size,))
    found = nl.ndarray((1, slots + 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.nonzero_with_count(dst=found, src=env["flags"], index_offset=0, padding_val=-1)
    count = nisa.register_alloc()
    nisa.register_load(dst=count, src=found[0:1, slots : slots + 1])

    def recomputed_tile(i):
        slot = nisa.register_alloc()
        nisa.register_load(dst=slot, src=found.ap(pattern=[[slots + 1, 1], [1, 1]], offset=0, scalar_offset=i, indirect_dim=1))
        _run(env, slot)

    nl.fori_loop(0, count, recomputed_tile)


def _run(env, slot):
    """The tile of one slot."""
    slots, fields = env["slots"], env["fields"]
    place = {"registers": {}, "position": None}
    record = nl.ndarray((1, len(fields)), dtype=nl.int32, buffer=nl.sbuf)
    source = env["places"].ap(pattern=[[1, 1], [slots, len(fields)]], offset=0, scalar_offset=slot, indirect_dim=1)
    nisa.dma_copy(dst=record, src=source)
    for f in range(len(fields)):
        register = nisa.register_alloc()
        nisa.register_load(dst=register, src=record[0:1, f : f + 1])
        place["registers"][fields[f]] = register
    if env["lo"] == None:  # noqa: E711
        raw = nl.ndarray((TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
        offset = (len(fields) - 1) * slots
        source = env["places"].ap(pattern=[[0, TILE], [1, 1]], offset=offset, scalar_offset=slot, indirect_dim=1)
        nisa.dma_copy(dst=raw, src=source)
        place["position"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=place["position"], src=raw, engine=nisa.engine.vector)
    exact_tile(env, place)
