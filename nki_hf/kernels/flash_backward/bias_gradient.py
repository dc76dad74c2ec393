"""The gradient of an additive bias, dS = P * (dprobs - delta), summed over the axes that the bias shares.

A pass of its own, whose outer loops are the bias's own axes: each element is written once, by one core, whatever is summed
into it, and no more than a tile of rows by `CHUNK` keys is held. It recomputes scores and row statistics; where the bias has
a row per query and head, and one batch, it doubles the kernel's work.
"""

from nki_hf.kernels.flash_backward.key_blocks import load_block, prepare_block
from nki_hf.kernels.flash_backward.scores import (
    end_statistics,
    gather_statistics,
    mask_scores,
    probabilities,
    products,
    score_gradients,
    step_shape,
)
from nki_hf.kernels.flash_backward.steps import bias_jobs, row_steps, runs_of, tiles_of
from nki_hf.kernels.flash_backward.tiles import load_run, open_tile, prepare_run
from nki_hf.lang import nisa, nl

TILE = 128
BANK = 512
CHUNK = 4096
"""Keys whose sums are held together: 16 KiB of float32 per partition."""


def write_bias_gradient(env, dbias, spans, size, program, programs):
    """Write `dbias`, the jobs divided over the cores."""
    q, k = env["q"], env["k"]
    jobs = bias_jobs(dbias.shape, q.shape[0], q.shape[1], q.shape[2], program, programs)
    for j in range(len(jobs)):
        job = jobs[j]
        for begin in range(0, k.shape[2], CHUNK):
            end = min(begin + CHUNK, k.shape[2])
            sums = nl.ndarray((TILE, end - begin), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=sums, value=0.0)
            for batch in range(job["batch"], job["batch_end"]):
                for head in range(job["head"], job["head_end"]):
                    group = q.shape[1] // k.shape[1]
                    unit = batch * k.shape[1] + head // group
                    tiles = tiles_of(unit, spans, q.shape, k.shape)
                    for t in range(job["tile"], job["tile_end"]):
                        tile = tiles[head % group * len(spans) + t]
                        _add_tile(env, sums, tile, unit, begin, end, size)
            _write(dbias, job, sums, begin, end)


def _add_tile(env, sums, tile, unit, begin, end, size):
    """Add dS of a query tile and of the keys `[begin, end)`."""
    k = env["k"]
    if tile["first"] >= tile["last"]:
        return
    runs = runs_of([tile], 0, 1)
    run = runs[0]
    load_run(env, run)
    prepare_run(env, run)
    open_tile(env, tile, run)
    rounds = 1
    if env["recompute"]:
        rounds = 2
    for turn in range(rounds):
        statistics = turn + 1 < rounds
        blocks, steps = row_steps(unit, tile, k.shape, size, statistics)
        for i in range(len(steps)):
            step, block = steps[i], blocks[i]
            if statistics or (step["key"] < end and step["key"] + step["width"] > begin):
                load_block(env, block)
                prepare_block(block)
                work = products(env, step, tile, run, block)
                if statistics:
                    gather_statistics(env, step, tile, work)
                else:
                    _add_step(env, sums, step, tile, work, begin)
        if statistics:
            end_statistics(env, tile)


def _add_step(env, sums, step, tile, work, begin):
    rows, width = step_shape(step, tile)
    mask_scores(env, step, tile, work)
    probs, _ = probabilities(env, step, tile, work, nl.float32)
    dscores = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
    score_gradients(env, tile, work, probs, dscores)
    place = sums[0:rows, step["key"] - begin : step["key"] - begin + width]
    nisa.tensor_tensor(dst=place, data1=place, data2=dscores, op=nl.add)


def _write(dbias, job, sums, begin, end):
    """A tile of rows as it is; for a bias without rows their sum, by a product with ones."""
    batch, head = job["batch"], job["head"]
    if dbias.shape[2] > 1:
        row, rows = job["tile"] * TILE, job["rows"]
        nisa.dma_copy(dst=dbias[batch, head, row : row + rows, begin:end], src=sums[0:rows, 0 : end - begin])
        return
    ones = nl.ndarray((TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    line = nl.ndarray((1, end - begin), dtype=nl.float32, buffer=nl.sbuf)
    for place in range(0, end - begin, BANK):
        width = min(BANK, end - begin - place)
        bank = nl.ndarray((1, width), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=bank, stationary=ones, moving=sums[0:TILE, place : place + width])
        nisa.tensor_copy(dst=line[0:1, place : place + width], src=bank, engine=nisa.engine.vector)
    nisa.dma_copy(dst=dbias[batch, head, 0:1, begin:end], src=line)
