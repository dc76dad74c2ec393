"""The main pass of `flash_const_max`: the steps of all blocks in one pipeline, in this order."""

from nki_hf.kernels.flash_const_max.finish import finish_block
from nki_hf.kernels.flash_const_max.loads import load_keys, load_queries, load_rows, turn_rows
from nki_hf.kernels.flash_const_max.masks import MASKS_AHEAD, add_masks, hide_edges, make_masks
from nki_hf.kernels.flash_const_max.places import write_places
from nki_hf.lang import nisa, nl

TILE = 128
BANK = 512
PLACES_AT = 4
"""The step before which the table of places is written: not before the first loads."""


def run_steps(env):
    """Scores of step i, its exp, output of step i - lag, the end of what ended at step i - lag - late.

    The exp of copied steps stands behind that of the next step, which reads PSUM: so Scalar need not wait for the copies, and
    PSUM is free early.
    """
    steps, blocks, segments, loads, lag, late = (
        env["steps"],
        env["blocks"],
        env["segments"],
        env["loads"],
        env["lag"],
        env["late"],
    )
    lo, count = env["lo"], len(env["steps"])
    with nl.no_reorder():  # the order below is the pipeline
        for i in range(count + lag + late):
            if i == PLACES_AT or (i == 0 and count <= PLACES_AT):
                write_places(env)
            if i < count:
                for load in loads[i]:
                    if load["kind"] == "rows":
                        load_rows(env, load, segments[load["segment"]])
                    elif load["kind"] == "q":
                        load_queries(env, blocks, load["block"])
                    else:
                        load_keys(env, load, blocks[load["block"]])
                step = steps[i]
                block = blocks[step["block"]]
                if lo != None:  # noqa: E711
                    if block["rows"]["edges"] == None:  # noqa: E711
                        turn_rows(env, block["rows"])
                    make_masks(env, step, block, 1000)
                    more = 1
                    for n in range(i + 1, min(i + MASKS_AHEAD + 1, count)):
                        more = make_masks(env, steps[n], blocks[steps[n]["block"]], more)
                _scores(env, step, block)
                if step["copied"]:
                    _copy(env, step, block)
                else:
                    _exponentials(env, steps, step["exp"], block)
            if i > 0 and i <= count:
                step = steps[i - 1]
                if step["copied"] and step["exp"]["last"] == i - 1:
                    _exponentials(env, steps, step["exp"], blocks[step["block"]])
            if i >= lag and i - lag < count:
                step = steps[i - lag]
                block = blocks[step["block"]]
                if step["opens"]:
                    _open_accumulators(env, block)
                _output(env, step, block)
                if step["exp"]["last"] == i - lag:
                    step["exp"]["probs"] = None
                for cell in step["cells"]:
                    if cell["load"]["last"] == i - lag:
                        cell["load"]["k"] = None
                        cell["load"]["v"] = None
            if i >= lag + late:
                step = steps[i - lag - late]
                if step["closes"]:
                    finish_block(env, step["block"])


def _scores(env, step, block):
    """scores[keys, columns] = k.T @ q of each cell, head_dim contracted in pieces of 128."""
    cells = step["cells"]
    if len(cells) == 0:
        return
    tile = _tile(step["columns"], nl.float32, nl.psum)
    for cell in cells:
        keys, begin, end, at = cell["keys"], cell["begin"], cell["end"], cell["at"]
        load = cell["load"]
        place = cell["key"] - load["begin"]
        for piece in range(len(load["k"])):
            part = load["k"][piece]
            queries = block["q"][piece]
            depth = part.shape[0]
            nisa.nc_matmul(
                dst=tile[0:keys, at : at + end - begin],
                stationary=part[0:depth, cell["unit"], place : place + keys],
                moving=queries[0:depth, begin:end],
            )
        if env["lo"] != None and len(cell["edges"]) > 0:  # noqa: E711
            add_masks(env, tile[0:keys], block, cell)
    step["scores"] = tile
    if not step["copied"]:
        step["exp"]["scores"] = tile


def _tile(columns, dtype, buffer):
    """[TILE, columns], in whole banks where it has more than one."""
    if columns > BANK:
        columns = (columns + BANK - 1) // BANK * BANK
    return nl.ndarray((TILE, columns), dtype=dtype, buffer=buffer)


def _part(tile, cells, run, place):
    """The columns of a run: side by side, or the first ones of consecutive banks."""
    first, last = cells[run[0]], cells[run[1] - 1]
    keys, begin = first["keys"], first[place]
    width = first["end"] - first["begin"]
    if run[1] - run[0] > 1:
        if cells[run[0] + 1][place] > begin + width:
            banks = tile.reshape((TILE, tile.shape[1] // BANK, BANK))
            return banks[0:keys, begin // BANK : last[place] // BANK + 1, 0:width]
    return tile[0:keys, begin : last[place] + last["end"] - last["begin"]]


def _copy(env, step, block):
    """Scores of a step to the SBUF tile of its exp."""
    exp, placed = step["exp"], step["placed"]
    if len(placed) == 0:
        return
    if step["leads"]:
        exp["scores"] = _tile(exp["columns"], nl.float32, nl.sbuf)
    for run in step["runs"]:
        target, source = _part(exp["scores"], placed, run, "to"), _part(step["scores"], placed, run, "at")
        nisa.tensor_copy(dst=target, src=source, engine=nisa.engine.vector)
    step["scores"] = None


def _exponentials(env, steps, exp, block):
    """Probs = exp(scale * scores - shift + bias of the key), one instruction per run; hidden ones become 0 at static edges."""
    cells = exp["cells"]
    if len(cells) == 0:
        return
    probs = _tile(exp["columns"], env["v"].dtype, nl.sbuf)
    for run in exp["runs"]:
        cell = cells[run[0]]
        offset = env["offset"][0 : cell["keys"], 0:1]
        if env["bias"] != None:  # noqa: E711
            number = cell["key"] // TILE
            bias = env["key_bias"][min(block["batch"], env["bias"].shape[0] - 1)]
            offset = bias[0 : cell["keys"], number : number + 1]
        nisa.activation(
            dst=_part(probs, cells, run, "to"),
            op=nl.exp,
            data=_part(exp["scores"], cells, run, "to"),
            bias=offset,
            scale=env["scale"],
        )
    exp["probs"] = probs
    exp["scores"] = None
    for i in range(exp["first"], exp["last"] + 1):
        steps[i]["scores"] = None
        if env["lo"] == None:  # noqa: E711
            hide_edges(env, steps[i], block)


def _open_accumulators(env, block):
    """One region of `piece` columns per column tile and piece of [v | 1]; as many in a bank as fit evenly."""
    regions = block["tiles"] * block["heads"] * env["pieces"]
    banks = (regions + 512 // env["piece"] - 1) // (512 // env["piece"])
    block["per_bank"] = (regions + banks - 1) // banks
    block["accumulators"] = []
    for bank in range(banks):
        size = min(block["per_bank"], regions - bank * block["per_bank"])
        block["accumulators"].append(nl.ndarray((TILE, size, env["piece"]), dtype=nl.float32, buffer=nl.psum))


def _output(env, step, block):
    """[out | row sum] += probs.T @ [v | 1], bank by bank."""
    cells, heads, exp = step["cells"], block["heads"], step["exp"]
    for bank in range(len(block["accumulators"])):
        tile = block["accumulators"][bank]
        for cell in cells:
            load = cell["load"]
            keys, slot = cell["keys"], (cell["key"] - load["begin"]) // TILE
            for place in range(tile.shape[1]):
                region = bank * block["per_bank"] + place
                column, piece = region // env["pieces"], region % env["pieces"]
                if column // heads in cell["seen"]:
                    begin = piece * env["piece"]
                    end = min(begin + env["piece"], env["v"].shape[3] + 1)
                    rows = cell["to"] - cell["begin"] + column * TILE
                    nisa.nc_matmul(
                        dst=tile[0:TILE, place, 0 : end - begin],
                        stationary=exp["probs"][0:keys, rows : rows + TILE],
                        moving=load["v"][0:keys, cell["unit"], slot, begin:end],
                    )
