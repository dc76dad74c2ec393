"""The five stages of a step of `flash_decode` (see `kernel`)."""

from nki_hf.kernels.flash_decode.bounds import mask_of
from nki_hf.kernels.flash_decode.finish import note_sums
from nki_hf.kernels.flash_decode.loads import LOWEST
from nki_hf.kernels.flash_decode.work import PAIR
from nki_hf.lang import nisa, nl

TILE = 128
BANK_BYTES = 2048
FEW_ROWS = 64
"""Rows up to which they stream through the Tensor engine in the least time that an instruction takes."""

MANY_ROWS = 16
"""Rows above which all copies of turned keys are Scalar's: Vector then has maxima and sums of as many columns to take."""


def turn(env, step):
    """Key tiles as [head_dim piece, keys]; as many share a PSUM bank, and a copy, as fit. The copies of few rows alternate."""
    if not step["turns"]:
        return
    turned = step["turned"]
    turned["k"] = []
    for n in range(len(step["parts"])):
        turned["k"].append(_turned(env, step["parts"][n]))


def _turned(env, part):
    k, load, tiles = env["k"], part["load"], part["tiles"]
    head_dim, size = k.shape[3], 2
    if k.dtype == nl.float32:
        size = 4
    per_bank = BANK_BYTES // (TILE * size)
    pieces = []
    for d in range(0, head_dim, TILE):
        depth = min(TILE, head_dim - d)
        piece = nl.ndarray((depth, tiles * TILE), dtype=k.dtype, buffer=nl.sbuf)
        for first in range(0, tiles, per_bank):
            count = min(per_bank, tiles - first)
            bank = nl.ndarray((depth, count * TILE), dtype=k.dtype, buffer=nl.psum)
            for n in range(count):
                begin = (part["tile"] + first + n) * head_dim + d
                nisa.nc_transpose(
                    dst=bank[0:depth, n * TILE : (n + 1) * TILE],
                    data=load["k"][0:TILE, begin : begin + depth],
                    engine=nisa.engine.tensor,
                )
            target = piece[0:depth, first * TILE : (first + count) * TILE]
            if env["copies"] % 2 == 1 or env["block_rows"] > MANY_ROWS:
                nisa.activation(dst=target, op=nl.copy, data=bank)
            else:
                nisa.tensor_copy(dst=target, src=bank, engine=nisa.engine.vector)
            env["copies"] = env["copies"] + 1
        pieces.append(piece)
    return pieces


def scores(env, step):
    """scores[keys, row, key tile]: the mask and the product."""
    block = env["blocks"][step["block"]]
    rows = block["rows"]
    column = env["segments"][block["segment"]]["column"] + block["row"]
    tile = nl.ndarray((TILE, rows, step["tiles"]), dtype=nl.float32, buffer=nl.psum)
    begin = 0
    for m in range(len(step["parts"])):
        part, pieces = step["parts"][m], step["turned"]["k"][m]
        if env["softcap"] == None:  # noqa: E711
            hidden = _hidden(env, step, part)
            target = tile[0:TILE, 0:rows, begin : begin + part["tiles"]]
            nisa.nc_matmul(dst=target, stationary=env["twice_identity"], moving=hidden)
        for n in range(part["tiles"]):
            for p in range(len(pieces)):
                piece, queries = pieces[p], env["queries"][p]
                depth = piece.shape[0]
                nisa.nc_matmul(
                    dst=tile[0:TILE, 0:rows, begin + n],
                    stationary=piece[0:depth, n * TILE : (n + 1) * TILE],
                    moving=queries[0:depth, column : column + rows],
                )
        begin = begin + part["tiles"]
    if env["softcap"] != None:  # noqa: E711
        tile = _capped(env, step, tile)
    step["scores"] = tile


def _hidden(env, step, part):
    """The mask of a part's keys, [keys, row, key tile]: a view in which the heads of a group share their rows' masks."""
    seqlen_q, rows = env["q"].shape[2], env["blocks"][step["block"]]["rows"]
    mask = mask_of(env, step["batch"])
    first = part["load"]["chunk"] * env["per_partition"] + part["tile"]
    pattern = [[mask.shape[1] * seqlen_q, TILE], [0, rows // seqlen_q], [1, seqlen_q], [seqlen_q, part["tiles"]]]
    return mask.ap(pattern=pattern, offset=first * seqlen_q)


def _capped(env, step, tile):
    """The tanh of the scores, and the mask."""
    rows, tiles = env["blocks"][step["block"]]["rows"], step["tiles"]
    capped = nl.ndarray((TILE, rows, tiles), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=capped, op=nl.tanh, data=tile, scale=env["scale"] / env["softcap"])
    shown = nl.ndarray((TILE, rows, tiles), dtype=nl.float32, buffer=nl.sbuf)
    begin = 0
    for m in range(len(step["parts"])):
        part = step["parts"][m]
        end = begin + part["tiles"]
        nisa.scalar_tensor_tensor(
            dst=shown[0:TILE, 0:rows, begin:end],
            data=_hidden(env, step, part),
            op0=nl.multiply,
            operand0=2.0,
            op1=nl.add,
            operand1=capped[0:TILE, 0:rows, begin:end],
        )
        begin = end
    return shown


def tops(env, step, number):
    """The maximum of each row over the key tiles, [keys, rows]; of few rows in a tile that has room for sums beside them."""
    rows, tile = env["blocks"][step["block"]]["rows"], step["scores"]
    if len(env["pairs"]) > 0:
        step["tops"] = env["pairs"][number % len(env["pairs"])]
    else:
        step["tops"] = nl.ndarray((TILE, rows), dtype=nl.float32, buffer=nl.sbuf)
    found = step["tops"][0:TILE, 0:rows]
    nisa.tensor_reduce(dst=found, op=nl.maximum, data=tile, axis=2)
    if nisa.get_nc_version() < nisa.nc_version.gen3:
        # Its transposes are products with an identity, and 0 times the -inf of hidden keys would reach all rows.
        nisa.tensor_scalar(dst=found, data=found, op0=nl.maximum, operand0=LOWEST, engine=nisa.engine.vector)


def maximum(env, step, summed):
    """The running maximum of each row [rows, 1], and on a diagonal for the product that subtracts it.

    The diagonal is selected, not multiplied: 0 times the inf or NaN of one row would reach all others.

    The sums of step `summed`, if there is one, are turned with the maxima: then they need no product of their own.
    """
    block = env["blocks"][step["block"]]
    rows = block["rows"]
    turned = step["tops"]
    bank = nl.ndarray((turned.shape[1], TILE), dtype=turned.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=bank, data=turned, engine=nisa.engine.tensor)
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=bank[0:rows, 0:TILE], axis=1)
    before = block["maximum"]
    if before == None:  # noqa: E711
        before = env["lowest"][0:rows, 0:1]
    if summed != None:  # noqa: E711
        _total(env, summed, bank[PAIR : PAIR + rows, 0:TILE])
    # What nothing waits for soon, on the engine that has nothing else to do.
    engine = nisa.engine.gpsimd
    after = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=after, data1=before, data2=top, op=nl.maximum, engine=engine)
    step["diagonal"] = nl.ndarray((rows, rows), dtype=nl.float32, buffer=nl.sbuf)
    nisa.affine_select(
        dst=step["diagonal"],
        pattern=[[-1, rows]],
        offset=0,
        channel_multiplier=1,
        on_true_tile=after.ap(pattern=[[1, rows], [0, rows]], offset=0),
        on_false_value=0.0,
        cmp_op=nl.equal,
    )
    if not step["first"]:
        step["correction"] = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=step["correction"], data1=before, data2=after, op=nl.subtract, engine=engine)
    block["maximum"] = after
    step["tops"] = None
    if step["last"]:
        place = block["place"]
        nisa.activation(dst=env["maxima"][0:rows, place : place + 1], op=nl.copy, data=after, scale=env["slope"])


def exponentials(env, step):
    """probs[keys, row, key tile] = exp(slope * (score - maximum)), and the correction of what came before."""
    block = env["blocks"][step["block"]]
    rows, tiles, tile = block["rows"], step["tiles"], step["scores"]
    softcap = env["softcap"]
    shift = tile
    if softcap != None:  # noqa: E711
        shift = nl.ndarray((TILE, rows, 1), dtype=nl.float32, buffer=nl.psum)
    moving = step["diagonal"].ap(pattern=[[rows, rows], [1, rows], [0, shift.shape[2]]], offset=0)
    nisa.nc_matmul(dst=shift, stationary=env["minus_ones"][0:rows, 0:TILE], moving=moving)
    if softcap != None:  # noqa: E711
        spread = shift.ap(pattern=[[rows, TILE], [1, rows], [0, tiles]], offset=0)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=spread, op=nl.add, engine=nisa.engine.vector)
    step["probs"] = nl.ndarray((TILE, rows, tiles), dtype=env["v"].dtype, buffer=nl.sbuf)
    step["weights"] = step["probs"]
    found = [step["probs"]]
    if env["v"].dtype != nl.float32:
        # Row sums of what is not rounded: lse would be off by the rounding of a row's only key.
        step["weights"] = nl.ndarray((TILE, rows, tiles), dtype=nl.float32, buffer=nl.sbuf)
        found = [step["probs"], step["weights"]]
        if rows >= MANY_ROWS:  # what the Vector engine sums goes first: it has more to do than what waits for the other
            found = [step["weights"], step["probs"]]
    for n in range(len(found)):
        nisa.activation(dst=found[n], op=nl.exp, data=tile, scale=env["slope"])
    if step["correction"] != None:  # noqa: E711
        nisa.activation(dst=step["correction"], op=nl.exp, data=step["correction"], scale=env["slope"])
    step["scores"] = None


def sums(env, step, beside):
    """The sum of each row over the key tiles, [keys, rows] float32: beside the maxima of the step `beside`, if there is one."""
    rows = env["blocks"][step["block"]]["rows"]
    if beside == None:  # noqa: E711
        step["sums"] = nl.ndarray((TILE, rows), dtype=nl.float32, buffer=nl.sbuf)
    else:
        step["sums"] = beside["tops"][0:TILE, PAIR : PAIR + rows]
    nisa.tensor_reduce(dst=step["sums"], op=nl.add, data=step["weights"], axis=2)
    step["weights"] = None


def _summed(env, step):
    """The sum of each row over all keys of a step that no maxima follow."""
    rows = env["blocks"][step["block"]]["rows"]
    if len(env["pairs"]) > 0:
        turned = nl.ndarray((rows, TILE), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=step["sums"], engine=nisa.engine.tensor)
        _total(env, step, turned)
    else:
        step["total"] = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=step["total"], stationary=step["sums"], moving=env["one"])


def close_sums(env, step):
    """The sums of a last step's rows before its product, so that lse need not wait for values."""
    block = env["blocks"][step["block"]]
    rows, width = block["rows"], env["v"].shape[3]
    if step["total"] == None:  # noqa: E711
        _summed(env, step)
    before = block["sum"]
    if before == None and block["accumulator"] != None:  # noqa: E711
        before = block["accumulator"][0:rows, width : width + 1]
    after = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    _corrected(step, before, after)
    block["sum"] = after
    if step["last"]:
        note_sums(env, block, block["sum"])


def _corrected(step, before, after):
    """`after` [rows, 1]: the sums of the steps before, corrected, and this one's."""
    if before == None:  # noqa: E711
        nisa.tensor_copy(dst=after, src=step["total"], engine=nisa.engine.vector)
    else:
        nisa.scalar_tensor_tensor(
            dst=after, data=before, op0=nl.multiply, operand0=step["correction"], op1=nl.add, operand1=step["total"]
        )


def _total(env, step, turned):
    """The sum of each row over all keys of the step, [rows, 1], from `turned` [rows, keys]."""
    step["total"] = nl.ndarray((turned.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=step["total"], op=nl.add, data=turned, axis=1)


def output(env, step):
    """[probs.T @ v | row sums] of the step in PSUM, [rows, head_dim_v + 1].

    Of few rows the product is made turned, [head_dim_v piece, rows]: then rows move instead of values, in half of the time.
    Such pieces are copied to SBUF here and turned back by `gathered`.
    """
    rows, width, probs = env["blocks"][step["block"]]["rows"], env["v"].shape[3], step["probs"]
    if env["v"].dtype != nl.float32 and rows <= FEW_ROWS:
        pieces = []
        for d in range(0, width, TILE):
            depth = min(TILE, width - d)
            turned, at = nl.ndarray((depth, rows), dtype=nl.float32, buffer=nl.psum), 0
            for m in range(len(step["parts"])):
                part = step["parts"][m]
                for n in range(part["tiles"]):
                    begin = (part["tile"] + n) * width + d
                    values = part["load"]["v"][0:TILE, begin : begin + depth]
                    nisa.nc_matmul(dst=turned, stationary=values, moving=probs[0:TILE, 0:rows, at])
                    at = at + 1
            piece = nl.ndarray((depth, rows), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=piece, op=nl.copy, data=turned)
            pieces.append(piece)
        step["pieces"] = pieces
    else:
        bank, at = nl.ndarray((rows, width + 1), dtype=nl.float32, buffer=nl.psum), 0
        for m in range(len(step["parts"])):
            part = step["parts"][m]
            for n in range(part["tiles"]):
                begin = (part["tile"] + n) * width
                values = part["load"]["v"][0:TILE, begin : begin + width]
                nisa.nc_matmul(dst=bank[0:rows, 0:width], stationary=probs[0:TILE, 0:rows, at], moving=values)
                at = at + 1
        step["output"] = bank
    step["probs"] = None


def gathered(env, step):
    """The output's pieces turned back, if they are turned, and the row sums beside them."""
    rows, width = env["blocks"][step["block"]]["rows"], env["v"].shape[3]
    if step["total"] == None and len(env["pairs"]) > 0:  # noqa: E711
        _summed(env, step)
    if step["output"] == None:  # noqa: E711
        step["output"] = nl.ndarray((rows, width + 1), dtype=nl.float32, buffer=nl.psum)
        pieces = step["pieces"]
        for n in range(len(pieces)):
            piece = pieces[n]
            depth = piece.shape[0]
            target = step["output"]
            nisa.nc_transpose(dst=target[0:rows, n * TILE : n * TILE + depth], data=piece, engine=nisa.engine.tensor)
        step["pieces"] = None
    bank = step["output"]
    if step["total"] == None:  # noqa: E711
        nisa.nc_matmul(dst=bank[0:rows, width : width + 1], stationary=step["sums"], moving=env["one"])


def accumulate(env, step):
    """Correct the accumulator and add the step's output, float32."""
    block = env["blocks"][step["block"]]
    bank, rows, width = step["output"], block["rows"], env["v"].shape[3]
    after = nl.ndarray((rows, width + 1), dtype=nl.float32, buffer=nl.sbuf)
    before, edge = block["accumulator"], width + 1
    if block["sum"] != None:  # noqa: E711
        edge = width
    elif step["total"] != None:  # noqa: E711
        edge = width
        sums_before = None
        if before != None:  # noqa: E711
            sums_before = before[0:rows, width : width + 1]
        _corrected(step, sums_before, after[0:rows, width : width + 1])
    if before == None:  # noqa: E711
        nisa.tensor_copy(dst=after[0:rows, 0:edge], src=bank[0:rows, 0:edge], engine=nisa.engine.vector)
    else:
        nisa.scalar_tensor_tensor(
            dst=after[0:rows, 0:edge],
            data=before[0:rows, 0:edge],
            op0=nl.multiply,
            operand0=step["correction"],
            op1=nl.add,
            operand1=bank[0:rows, 0:edge],
        )
    block["accumulator"] = after
    step["output"] = None
    step["correction"] = None
