"""Launches, lint and references that fill what is kept for the next one: how that is emptied, the call, and what is right."""

import importlib

import numpy as np
from cached_calls import equal

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, faults, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.isa import affine, microscaling
from nki_hf.sim.run import play
from nki_hf.sim.stream import conflicts, footprint
from nki_hf.sim.tensors import casts
from nki_hf.tasks import attention_reference
from nki_hf.timing import instruction_kinds, workload
from nki_hf.tools.kernel_lint import check as lint_check
from nki_hf.tools.kernel_lint import evaluated_nodes, source
from nki_hf.tools.kernel_lint import signatures as lint_signatures
from nki_hf.tools.kernel_lint.evaluation import statements

__all__ = ["launches", "lints", "references", "rule"]

rule = importlib.import_module("nki_hf.sim.constraints.rule")  # the package has a function of that name


def _kernel(a):
    tile = nl.ndarray(a.shape, a.dtype)
    nisa.dma_copy(dst=tile, src=a)
    place = nl.ndarray(a.shape, nl.int32)
    nisa.iota(dst=place, pattern=[[1, a.shape[1]]], offset=3, channel_multiplier=2)
    nisa.affine_select(
        dst=tile,
        pattern=[[1, a.shape[1]]],
        channel_multiplier=-1,
        on_true_tile=tile,
        on_false_value=0.5,
        cmp_op=nl.greater_equal,
    )
    nisa.tensor_tensor(dst=tile, data1=tile, data2=place, op=nl.add)
    small = nl.ndarray(a.shape, nl.float8_e5m2)
    nisa.tensor_copy(dst=small, src=tile)
    nisa.tensor_copy(dst=tile, src=small)
    out = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def _refused_kernel(a):
    tile = nl.ndarray((4, 3), nl.float32)
    nisa.tensor_copy(dst=tile, src=nl.zeros((4, 5), nl.float32))


def launches():
    import ml_dtypes

    a = np.arange(20, dtype=np.float32).reshape(4, 5) - 7
    p, i = np.ogrid[:4, :5]
    wanted = (np.where(i - p >= 0, a, 0.5) + 3 + 2 * p + i).astype(ml_dtypes.float8_e5m2).astype(np.float32)

    def forget():
        rule._passed.clear()
        rule._stateful.clear()
        faults._is_simulator.clear()
        for each in (conflicts._FOOTPRINTS, footprint._verdicts, instruction_kinds._COSTS):
            each.clear()
        for each in (casts._narrow_table, casts._wide_table, play._at, microscaling._nibbles):
            each.cache_clear()
        for each in (affine._affine, affine._cast_pattern, affine._rejected):
            for cell in each.__closure__:
                if hasattr(cell.cell_contents, "cache_clear"):
                    cell.cell_contents.cache_clear()

    options = SimOptions(chip=get_chip("trn2"), record=True)

    def call():
        done = launch(_kernel, (a,), options=options)
        refusal = ""
        try:
            launch(_refused_kernel, (a,), options=options)
        except KernelFault as error:
            refusal = error.record.instruction
        work = workload.prepare(done.events, get_chip("trn2"))
        sums = round(float(sum(cost.busy_ns for cost in work.cost_of_kind)), 6), len(work.producers)
        return done.outputs[0], done.program({"a": a})[0], refusal, sums

    forget()
    sums = call()[3]

    def right(found):
        np.testing.assert_array_equal(found[0], wanted)
        np.testing.assert_array_equal(found[1], wanted)
        assert found[2:] == ("tensor_copy", sums)

    return forget, call, right


KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl

@nki.jit
def kernel(a):
    tile = nl.ndarray((128, 512), nl.float32)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_copi(dst=tile, src=tile)
    return tile
"""


def lints():
    def forget():
        for module, name in (
            (evaluated_nodes, "_evaluated"),
            (evaluated_nodes, "own_names"),
            (evaluated_nodes, "_own_strings"),
            (lint_signatures, "_parameters"),
            (source, "own_nodes"),
            (source, "string_constants"),
            (statements, "_stored"),
        ):
            getattr(module, name).cache_clear()

    def call():
        return [(each.rule, each.line) for each in lint_check.lint_source(KERNEL)]

    forget()
    once = call()
    assert once
    return forget, call, lambda found: equal(found, once)


def references():
    rng = np.random.default_rng(0)
    cases = [(rng.standard_normal((6, 8)), rng.standard_normal((6, 8))) for _ in range(2)]

    def call():
        return [attention_reference.powers(q, k, True, 1, None, True, None)[1] for q, k in (*cases, *cases[:1])]

    def right(found):
        for (q, k), sums in zip((*cases, *cases[:1]), found, strict=True):
            scores = np.where(np.tri(6, dtype=bool), q @ k.T * 8**-0.5, -np.inf)
            np.testing.assert_allclose(sums, np.exp(scores - scores.max(1, keepdims=True)).sum(1, keepdims=True), rtol=1e-12)

    return attention_reference._LAST.clear, call, right
