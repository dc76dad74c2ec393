"""The work list of one core: its query tiles that failed the certificate, for one loop at run time.

A core numbers its slots through all of its ledgers. `flags` [1, slots] int32 holds the failed rows of each; a table in HBM
[FIELDS, slots] int32 says where each slot's tile lies, as element offsets into the flattened tensors (see exact.py).
"""

from nki_hf.kernels.flash_const_max.exact import exact_tile
from nki_hf.lang import nisa, nl

SINCE = "0.6-tracer"
"""The front end that takes a loop at run time with its body; the entry without a loop calls nothing of this."""
TILE = 128
FIELDS = ("q", "k", "v", "out", "lse", "bounds", "bias", "sink", "position")


def open_worklist(env):
    """The flags, and the table of places."""
    segments, slots = env["segments"], 0
    for ledger in env["ledgers"]:
        ledger["place"] = slots
        slots = slots + ledger["slots"]
    env["slots"] = slots
    if slots == 0:
        return
    env["flags"] = nl.ndarray((1, slots), dtype=nl.int32, buffer=nl.sbuf)
    table = nl.ndarray((len(FIELDS), slots), dtype=nl.int32, buffer=nl.private_hbm)
    for f in range(len(FIELDS)):
        line = nl.ndarray((1, slots), dtype=nl.int32, buffer=nl.sbuf)
        first = 0
        for segment in segments:
            _places(env, line, first, segment, FIELDS[f])
            first = first + segment["tiles"] * env["group_size"]
        nisa.dma_copy(dst=table[f : f + 1, 0:slots], src=line)
    env["places"] = table
    for name in ("q", "k", "v", "out", "lse", "lo", "hi", "bias", "sink"):
        if env[name] != None:  # noqa: E711
            size = 1
            for axis in env[name].shape:
                size = size * axis
            env["flat_" + name] = env[name].reshape((size,))


def _places(env, line, first, segment, name):
    """One field of the slots of a segment: by head of the group, then query tile, the last of which starts early enough."""
    tiles, seqlen_q, seqlen_kv = segment["tiles"], env["q"].shape[3], env["k"].shape[3]
    heads_kv, group_size = env["k"].shape[1], env["group_size"]
    batch, head = segment["unit"] // heads_kv, segment["unit"] % heads_kv * group_size
    num_heads_q, width = env["q"].shape[1], env["v"].shape[3]
    base, by_head, by_row = 0, 0, 0
    if name == "q":
        by_head, by_row = env["q"].shape[2] * seqlen_q, 1
        base = (batch * num_heads_q + head) * by_head
    elif name == "k":
        base = segment["unit"] * env["k"].shape[2] * seqlen_kv
    elif name == "v":
        base = segment["unit"] * seqlen_kv * width
    elif name == "out":
        by_head, by_row = width, num_heads_q * width
        base = batch * seqlen_q * by_row + head * by_head
    elif name == "lse":
        by_head, by_row = seqlen_q, 1
        base = (batch * num_heads_q + head) * by_head
    elif name == "bounds" and env["lo"] != None:  # noqa: E711
        base, by_row = min(batch, env["lo"].shape[0] - 1) * seqlen_q, 1
    elif name == "bias" and env["bias"] != None:  # noqa: E711
        base = min(batch, env["bias"].shape[0] - 1) * seqlen_kv
    elif name == "sink":
        base, by_head = head, 1
    elif name == "position":
        by_row = 1
    for g in range(group_size):
        begin = first + g * tiles
        start = base + g * by_head + segment["begin"] * TILE * by_row
        nisa.iota(dst=line[0:1, begin : begin + tiles], pattern=[[TILE * by_row, tiles]], offset=start, channel_multiplier=0)
        if segment["end"] * TILE > seqlen_q:
            row = max(0, seqlen_q - TILE)
            last = line[0:1, begin + tiles - 1 : begin + tiles]
            nisa.iota(dst=last, pattern=[[0, 1]], offset=base + g * by_head + row * by_row, channel_multiplier=0)


def run_worklist(env):
    """Compute every flagged tile with its exact row maximum."""
    slots = env["slots"]
    if slots == 0:
        return
    found = nl.ndarray((1, slots + 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.nonzero_with_count(dst=found, src=env["flags"], index_offset=0, padding_val=-1)
    count = nisa.register_alloc()
    nisa.register_load(dst=count, src=found[0:1, slots : slots + 1])

    def body(i):
        slot = nisa.register_alloc()
        nisa.register_load(dst=slot, src=found.ap(pattern=[[slots + 1, 1], [1, 1]], offset=0, scalar_offset=i, indirect_dim=1))
        _run(env, slot)

    nl.fori_loop(0, count, body)


def _run(env, slot):
    """The tile of one slot."""
    slots, fields = env["slots"], len(FIELDS)
    place = {"registers": {}, "position": None}
    record = nl.ndarray((1, fields), dtype=nl.int32, buffer=nl.sbuf)
    source = env["places"].ap(pattern=[[1, 1], [slots, fields]], offset=0, scalar_offset=slot, indirect_dim=1)
    nisa.dma_copy(dst=record, src=source)
    for f in range(fields):
        register = nisa.register_alloc()
        nisa.register_load(dst=register, src=record[0:1, f : f + 1])
        place["registers"][FIELDS[f]] = register
    raw = nl.ndarray((TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    offset = (fields - 1) * slots
    source = env["places"].ap(pattern=[[0, TILE], [1, 1]], offset=offset, scalar_offset=slot, indirect_dim=1)
    nisa.dma_copy(dst=raw, src=source)
    place["position"] = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=place["position"], src=raw, engine=nisa.engine.vector)
    exact_tile(env, place)
