"""Where each slot's query tile lies, for the loop at run time: element offsets into the flattened tensors.

The table in HBM is int32 [fields, slots] of one core, through all of its ledgers; the fields are those of `exact.static_place`
that the call has.
"""

from nki_hf.lang import nisa, nl

TILE = 128


def open_places(env):
    """The flags of failed tiles, [1, slots] int32, and an empty table."""
    slots = 0
    for ledger in env["ledgers"]:
        ledger["place"] = slots
        slots = slots + ledger["slots"]
    fields = ["q", "k", "v", "out", "lse"]
    for name in ("bias", "sink"):
        if env[name] != None:  # noqa: E711
            fields.append(name)
    if env["lo"] != None:  # noqa: E711
        fields.append("bounds")
    else:
        fields.append("position")
    env["slots"] = slots
    env["fields"] = fields
    if slots > 0:
        env["flags"] = nl.ndarray((1, slots), dtype=nl.int32, buffer=nl.sbuf)
        env["places"] = nl.ndarray((len(fields), slots), dtype=nl.int32, buffer=nl.private_hbm)


def write_places(env):
    """Fill the table: neighbouring whole units of a batch entry with one instruction a field, and one transfer."""
    if env["flags"] == None:  # noqa: E711
        return
    segments, slots, group_size = env["segments"], env["slots"], env["group_size"]
    heads_kv, fields = env["k"].shape[1], env["fields"]
    first, s = 0, 0
    for _ in range(len(segments)):
        if s < len(segments):
            segment = segments[s]
            units = 1
            for n in range(s + 1, len(segments)):
                other = segments[n]
                near = other["unit"] == segment["unit"] + n - s and other["unit"] // heads_kv == segment["unit"] // heads_kv
                if near and n - s == units and other["begin"] == segment["begin"] and other["end"] == segment["end"]:
                    units = units + 1
            count = units * group_size * segment["tiles"]
            lines = nl.ndarray((1, len(fields), count), dtype=nl.int32, buffer=nl.sbuf)
            for f in range(len(fields)):
                _fill(env, lines, f, segment, units)
            target = env["places"].ap(pattern=[[slots, 1], [slots, len(fields)], [1, count]], offset=first)
            nisa.dma_copy(dst=target, src=lines)
            first = first + count
            s = s + units


def _fill(env, lines, f, segment, units):
    """One field of the slots of `units` segments: by unit, head of the group, query tile; the last tile starts early enough."""
    name, tiles, count = env["fields"][f], segment["tiles"], lines.shape[2]
    q, k, width, group_size = env["q"], env["k"], env["v"].shape[3], env["group_size"]
    seqlen_q, seqlen_kv, num_heads_q = q.shape[3], k.shape[3], q.shape[1]
    batch, unit = segment["unit"] // k.shape[1], segment["unit"]
    head = batch * num_heads_q + unit % k.shape[1] * group_size
    base, by_unit, by_head, by_row = 0, 0, 0, 0
    if name == "q":
        by_head = q.shape[2] * seqlen_q
        by_row = 1
        base = head * by_head
    elif name == "k":
        by_unit = k.shape[2] * seqlen_kv
        base = unit * by_unit
    elif name == "v":
        by_unit = seqlen_kv * width
        base = unit * by_unit
    elif name == "out":
        by_head = width
        by_row = num_heads_q * width
        base = batch * seqlen_q * by_row + (head - batch * num_heads_q) * width
    elif name == "lse":
        by_head = seqlen_q
        by_row = 1
        base = head * seqlen_q
    elif name == "bounds":
        by_row = 1
        base = min(batch, env["lo"].shape[0] - 1) * seqlen_q
    elif name == "bias":
        base = min(batch, env["bias"].shape[0] - 1) * seqlen_kv
    elif name == "sink":
        by_head = 1
        base = head - batch * num_heads_q
    else:
        by_row = 1
    if by_head > 0:
        by_unit = group_size * by_head
    pattern = [[by_unit, units], [by_head, group_size], [TILE * by_row, tiles]]
    start = base + segment["begin"] * TILE * by_row
    nisa.iota(dst=lines[0:1, f, 0:count], pattern=pattern, offset=start, channel_multiplier=0)
    if segment["end"] * TILE > seqlen_q:
        last = base + max(0, seqlen_q - TILE) * by_row
        pattern = [[by_unit, units], [by_head, group_size]]
        target = lines.ap(pattern=[[lines.shape[1] * count, 1], [tiles, units * group_size]], offset=f * count + tiles - 1)
        nisa.iota(dst=target, pattern=pattern, offset=last, channel_multiplier=0)


def at(env, tensor, place, name, pattern, offset):
    """An access to a tensor of `env` relative to the place."""
    whole = env[tensor]
    if place["registers"] == None:  # noqa: E711
        return whole.ap(pattern=pattern, offset=place[name] + offset)
    return env["flat_" + tensor].ap(pattern=pattern, offset=offset, scalar_offset=place["registers"][name], indirect_dim=0)
