"""The certificate of the shift, row by row, and how many rows of each query tile fail it.

A row is right if its sum is SUM_MIN or more, or it sees no key; its total lies in [1 / SUM_MAX, SUM_MAX]; and its output is
finite. With a sum of 1 or more, what was flushed to zero, of probabilities and of their products with v, weighs no more
than under the exact row maximum, whose sum is 1 or more as well. What overflows, of probabilities, sums or accumulators,
stays inf or becomes NaN, and so does the sum of the row's output.
"""

from nki_hf.lang import nisa, nl

TILE = 128
SUM_MIN = 1.0
SUM_MAX = 1.0e37
"""Below float32's and bfloat16's largest value, so that nothing that was summed has overflowed; its reciprocal is normal."""


def write_failed(env, ledger, segments):
    """Write the number of failed rows of every query tile of the ledger's segments."""
    if env["failed"] == None and env["flags"] == None:  # noqa: E711
        return
    slots = ledger["slots"]
    failed = _failed_rows(env, ledger)
    seqlen_q, group_size = env["q"].shape[3], env["group_size"]
    first, last = segments[ledger["first"]], segments[ledger["last"]]
    if last["end"] * TILE > seqlen_q:
        _ignore_padding(failed, seqlen_q % TILE, ledger, segments, seqlen_q, group_size)
    ones = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0, engine=nisa.engine.vector)
    counts = nl.ndarray((1, slots), dtype=nl.int32, buffer=nl.sbuf)
    for begin in range(0, slots, 512):
        end = min(begin + 512, slots)
        bank = nl.ndarray((1, end - begin), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=ones, moving=failed[0:TILE, begin:end])
        nisa.tensor_copy(dst=counts[0:1, begin:end], src=bank, engine=nisa.engine.vector)
    if env["flags"] != None:  # noqa: E711
        place = ledger["place"]
        nisa.tensor_copy(dst=env["flags"][0:1, place : place + slots], src=counts, engine=nisa.engine.vector)
    if env["failed"] == None:  # noqa: E711
        return
    tiles = env["failed"].shape[2]
    if first["tiles"] == tiles and last["tiles"] == tiles:
        target = env["failed"].ap(pattern=[[slots, 1], [1, slots]], offset=first["unit"] * group_size * tiles)
        nisa.dma_copy(dst=target, src=counts)
        return
    for s in range(ledger["first"], ledger["last"] + 1):
        segment = segments[s]
        size = segment["tiles"]
        for g in range(group_size):
            slot = segment["slot"] + g * size
            offset = (segment["unit"] * group_size + g) * tiles + segment["begin"]
            target = env["failed"].ap(pattern=[[size, 1], [1, size]], offset=offset)
            nisa.dma_copy(dst=target, src=counts[0:1, slot : slot + size])


def _failed_rows(env, ledger):
    """float32 [TILE, slots]: 1 for rows that fail."""
    slots, totals = ledger["slots"], ledger["totals"]
    good = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=good, data=ledger["sums"], op0=nl.greater_equal, operand0=SUM_MIN)
    if env["may_be_empty"]:
        nisa.tensor_tensor(dst=good, data1=good, data2=ledger["empty"], op=nl.maximum, engine=nisa.engine.vector)
    nisa.scalar_tensor_tensor(dst=good, data=totals, op0=nl.less_equal, operand0=SUM_MAX, op1=nl.multiply, operand1=good)
    nisa.scalar_tensor_tensor(
        dst=good, data=totals, op0=nl.greater_equal, operand0=1.0 / SUM_MAX, op1=nl.multiply, operand1=good
    )
    _finite(env, ledger, good)
    nisa.tensor_scalar(dst=good, data=good, op0=nl.multiply, operand0=-1.0, op1=nl.add, operand1=1.0)
    return good


def _finite(env, ledger, good):
    """Take away what is good of rows whose probe is inf or NaN."""
    slots = ledger["slots"]
    for part in range(env["pieces"]):
        finite = nl.ndarray((TILE, slots), dtype=nl.float32, buffer=nl.sbuf)
        probe = ledger["probes"][0:TILE, part, 0:slots]
        nisa.tensor_scalar(dst=finite, data=probe, op0=nl.multiply, operand0=0.0, op1=nl.equal, operand1=0.0)
        nisa.tensor_tensor(dst=good, data1=good, data2=finite, op=nl.multiply, engine=nisa.engine.vector)


def _ignore_padding(failed, rest, ledger, segments, seqlen_q, group_size):
    """Zero what stands behind the last query row of a segment's last tile."""
    real = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=real, pattern=[[0, 1]], offset=0, channel_multiplier=1)
    nisa.tensor_scalar(dst=real, data=real, op0=nl.less, operand0=float(rest))
    for s in range(ledger["first"], ledger["last"] + 1):
        segment = segments[s]
        if segment["end"] * TILE > seqlen_q:
            for g in range(group_size):
                slot = segment["slot"] + (g + 1) * segment["tiles"] - 1
                place = failed[0:TILE, slot : slot + 1]
                nisa.tensor_scalar(dst=place, data=place, op0=nl.multiply, operand0=real)
