"""All that the package keeps from one call for the next: it is found by a scan, and an interrupt at any line of what fills it
leaves the next call right.
"""

import ast
import importlib
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from interrupts import every_line

import nki_hf
from nki_hf import dispatch
from nki_hf.adapters import decision, layouts, mask_values, masks, model_classes, recorded_weights
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed import attend, mixed, pieces, segments
from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.flash_attn import flash_attn_varlen_func
from nki_hf.kernels import registry
from nki_hf.kernels.flash_backward import plan as backward_plan
from nki_hf.kernels.flash_const_max import plan as const_max_plan
from nki_hf.kernels.flash_decode import plan as decode_plan
from nki_hf.kernels.flash_prefill import plan as prefill_plan
from nki_hf.sim import SimOptions, faults, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.isa import affine, microscaling
from nki_hf.sim.run import play, tape
from nki_hf.sim.sdk import as_nki
from nki_hf.sim.stream import conflicts, footprint
from nki_hf.sim.tensors import casts
from nki_hf.tasks import attention_reference
from nki_hf.timing import instruction_kinds, workload
from nki_hf.tools.kernel_lint import check as lint_check
from nki_hf.tools.kernel_lint import evaluated_nodes, parser_values, source
from nki_hf.tools.kernel_lint import signatures as lint_signatures
from nki_hf.tools.kernel_lint.evaluation import statements
from nki_hf.tools.tuning import noticing

rule = importlib.import_module("nki_hf.sim.constraints.rule")  # the package has a function of that name
PACKAGE = Path(nki_hf.__file__).parent
KEEPERS = {
    "set", "dict", "list", "deque", "OrderedDict", "Counter", "defaultdict", "WeakSet", "WeakKeyDictionary",
    "WeakValueDictionary", "WeakTensorKeyDictionary", "WeakIdKeyDictionary", "local", "ContextVar",
}  # fmt: skip


def kept():
    """Names of module-level containers that begin empty, of what `global` writes, and of functions whose answers are kept."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(("nki_hf", *path.relative_to(PACKAGE).with_suffix("").parts))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        written = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and (target.id in written or _begins_empty(getattr(node, "value", None))):
                    found.add(f"{module}.{target.id}")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                texts = [ast.unparse(each) for each in node.decorator_list]
                if any(("cache" in text and "cached_property" not in text) or "_kept_if" in text for text in texts):
                    found.add(f"{module}.{node.name}")
    return found


def _begins_empty(value):
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.List):
        return not value.elts
    if not isinstance(value, ast.Call):
        return False
    name = getattr(value.func, "attr", getattr(value.func, "id", ""))
    return name in KEEPERS and not any(not isinstance(each, ast.Constant) for each in value.args)


def forget_decisions():
    for each in (dispatch.decide, decision._decided, decision._decided_gradients, registry._load):
        each.cache_clear()
    for plan, name in PLANS:
        getattr(plan, name).cache_clear()


PLANS = (
    (backward_plan, "plan_backward"),
    (const_max_plan, "plan_const_max"),
    (decode_plan, "plan_decode"),
    (prefill_plan, "plan_prefill"),
)


# ---- what is asked, and what is right -----------------------------------------------------------------------------------


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def packed_case():
    """Two sequences, as FlashAttention's function is told of them; against each of them alone in float64."""
    q, k, v = (drawn(seed, 40, 2, 8) for seed in range(3))
    starts = torch.tensor([0, 25, 40], dtype=torch.int32)
    expected = torch.empty(40, 2, 8, dtype=torch.float64)
    for first, last in ((0, 25), (25, 40)):
        expected[first:last] = exact(*(each[first:last].transpose(0, 1) for each in (q, k, v))).transpose(0, 1)

    def call():
        return flash_attn_varlen_func(q, k, v, starts, starts, 25, 25, causal=True)

    return call, expected


def exact(q, k, v):
    scores = q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v.double()


def forget_packs():
    for each in (pieces.cut, attend._indices):
        each.cache_clear()


def packs():
    call, expected = packed_case()
    return forget_packs, call, lambda found: torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


def told_keys():
    """The sequences that a mask's bounds tell: those of the mask that made them."""
    made = {}

    def forget():
        lo = torch.tensor([[0] * 4 + [4] * 3 + [7] * 2], dtype=torch.int32)
        made["keys"] = Keys(lo=lo, hi=torch.arange(1, 10, dtype=torch.int32)[None], inside=True)

    def right(found):
        assert (found.cu_q, found.cu_kv, found.window, found.ahead) == ((0, 4, 7, 9), (0, 4, 7, 9), None, 1)

    return forget, lambda: segments.segments_of_bounds(made["keys"], 9), right


def decisions():
    q, k, v = (drawn(seed, 1, 2, 33, 16) for seed in range(3))
    want = exact(q, k, v)

    def call():
        leaves = [each.clone().requires_grad_() for each in (q, k, v)]
        out = nki_hf.attention(*leaves, causal=True)
        return out.detach(), *torch.autograd.grad(out.sum(), leaves)

    leaves = [each.double().requires_grad_() for each in (q, k, v)]
    gradients = torch.autograd.grad(exact(*leaves).sum(), leaves)

    def right(found):
        for one, other in zip(found, (want, *gradients), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=5e-5, atol=5e-5)

    return forget_decisions, call, right


def layers():
    """Layers of passes over a mask on a device: the second pass must see what the mask holds, which no version tells."""
    made = {}
    two = [object(), object()]

    def forget():
        masks._passes.clear()
        layouts._kept.clear()
        made["mask"] = torch.zeros(1, 1, 5, 5, dtype=torch.float64)  # converted, and so copied

    def one_pass():
        made["mask"].data.add_(1.0)
        q = drawn(0, 1, 2, 5, 8)
        return [masks._unread(made["mask"], q, 5, cut=False, layer=layer).bias for layer in two]

    def call():
        return one_pass(), float(made["mask"][0, 0, 0, 0])

    def right(found):
        biases, value = found
        assert all(float(bias[0, 0, 0, 0]) == value for bias in biases)

    return forget, call, right


def read_masks():
    seen = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    q = drawn(0, 1, 2, 6, 8)

    def forget():
        masks._seen.clear()
        masks._causal.cache_clear()

    def call():
        return masks.read_mask(seen, q=q, seqlen_kv=6, causal=False), masks.read_mask(None, q=q, seqlen_kv=6, causal=True)

    def right(found):
        for keys in found:
            assert torch.equal(keys.dense(6, 6, q.device).expand_as(seen), seen)

    return forget, call, right


def restarts():
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    keys = Keys(ahead=1)

    told = []

    def forget():
        mixed._latest, mixed._warned = (lambda: None, None, []), False
        told.clear()

    def call():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                mixed.warn_if_mixed(positions, keys, 5, lambda: "layer")
            finally:
                told.extend(seen)
        return len(told), mixed._restarts(positions)

    def right(found):  # the warning may come twice, but it is not lost
        warned, rows = found
        assert warned > 0
        assert rows == [(0, 3)]

    return forget, call, right


def classes():
    from transformers import LlamaConfig, OPTConfig

    asked = {}

    def forget():
        model_classes._declining.clear()
        for name in ("_names_blocks", "_asks", "_passes_on", "_file_like_sdpa", "_file_asks"):
            getattr(model_classes, name).cache_clear()
        asked["module"] = torch.nn.Linear(1, 1)

    def call():
        return [
            (model_classes.declines_sdpa(kind), model_classes.routing(kind), model_classes.overlays_blocks(kind))
            for kind in (LlamaConfig, OPTConfig)
        ]

    forget()
    once = call()  # by other tests known to be right
    return forget, call, lambda found: _equal(found, once)


def _equal(found, wanted):
    assert found == wanted


def stacks():
    def forget():
        recorded_weights._kinds.clear()
        recorded_weights._held.clear()

    def holder():
        pass

    def call():
        return recorded_weights._look(holder.__code__), {*recorded_weights._kinds} - {*recorded_weights._held}

    return forget, call, lambda found: _equal(found, (0, set()))


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
    return forget, call, lambda found: _equal(found, once)


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


WORKS = {
    "packs": (packs, (attend, pieces, segments)),
    "told keys": (told_keys, (segments, pieces)),
    "decisions": (decisions, (dispatch, decision, registry, *(plan for plan, _ in PLANS))),
    "layers": (layers, (masks, layouts)),
    "masks": (read_masks, (masks, mask_values)),
    "restarts": (restarts, (mixed,)),
    "classes": (classes, (model_classes,)),
    "stacks": (stacks, (recorded_weights,)),
    "launches": (launches, (rule, faults, conflicts, footprint, workload, instruction_kinds, affine, casts, play)),
    "references": (references, (attention_reference,)),
}


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", WORKS)
def test_an_interrupt_at_any_line_leaves_the_next_call_right(name, stride, record_property, monkeypatch):
    make, modules = WORKS[name]
    if name == "layers":  # as on a device whose values cannot be read
        monkeypatch.setattr(masks, "device_world", lambda kind: "native")
    forget, call, right = make()
    forget()
    right(call())

    def work():
        forget()
        call()

    count = every_line(work, *modules, check=lambda: right(call()), stride=stride)
    assert count > 3
    record_property("lines", count)


@pytest.mark.slow
def test_an_interrupt_at_any_line_of_the_lint_leaves_the_next_one_right():
    forget, call, right = lints()

    def work():
        forget()
        call()

    modules = (parser_values, evaluated_nodes, lint_signatures, source, statements)
    assert every_line(work, *modules, check=lambda: right(call()), stride=5) > 100


def blocks():
    """Blocks that put something in a place for as long as they are open: what is left there afterwards."""

    def taped():
        with tape.recording():
            sys.settrace(None)

    def noticed():
        with noticing.noticing(noticing.Noticed()):
            sys.settrace(None)

    def lent():
        with as_nki.as_nki():
            sys.settrace(None)

    return {"tape": (taped, tape), "noticing": (noticed, noticing), "as_nki": (lent, as_nki)}


@pytest.mark.parametrize("name", ["tape", "noticing", "as_nki"])
def test_an_interrupt_where_a_block_opens_leaves_nothing_open(name):
    work, module = blocks()[name]
    work()

    def left():
        lookups = [each for each in sys.meta_path if each is noticing._Lookups]
        names = {key for key in sys.modules if key == "nki" or key.startswith("nki.")}
        return [*tape._current], [*noticing._noticing], lookups, [*as_nki._OPEN], names, as_nki.BLOCK.get()

    before = left()
    functions = {"recording", "noticing", "as_nki", "_lend", "_exchange", "_standing"}
    assert every_line(work, module, check=lambda: _equal(left(), before), functions=functions) > 3


INJECTED = {
    "packs": ("adapters.packed.attend._indices", "adapters.packed.pieces.cut"),
    "decisions": (
        "adapters.decision._decided", "adapters.decision._decided_gradients", "dispatch.decide", "kernels.registry._load",
        "kernels.flash_backward.plan.plan_backward", "kernels.flash_const_max.plan.plan_const_max",
        "kernels.flash_decode.plan.plan_decode", "kernels.flash_prefill.plan.plan_prefill",
    ),
    "layers": ("adapters.masks._passes", "adapters.layouts._kept"),
    "masks": ("adapters.masks._seen", "adapters.masks._causal"),
    "restarts": ("adapters.packed.mixed._warned", "adapters.packed.mixed._latest"),
    "classes": tuple(
        f"adapters.model_classes.{name}"
        for name in ("_declining", "_names_blocks", "_asks", "_passes_on", "_file_like_sdpa", "_file_asks")
    ),
    "stacks": ("adapters.recorded_weights._kinds", "adapters.recorded_weights._held"),
    "launches": (
        "sim.constraints.rule._passed", "sim.constraints.rule._stateful", "sim.faults._is_simulator", "sim.isa.affine._affine",
        "sim.isa.affine._cast_pattern", "sim.isa.affine._rejected", "sim.run.play._at", "sim.stream.conflicts._FOOTPRINTS",
        "sim.stream.footprint._verdicts", "sim.tensors.casts._narrow_table", "sim.tensors.casts._wide_table",
        "timing.instruction_kinds._COSTS", "sim.isa.microscaling._nibbles",
    ),
    "references": ("tasks.attention_reference._LAST",),
    "lint": tuple(
        f"tools.kernel_lint.{name}"
        for name in ("evaluation.statements._stored", "evaluated_nodes._evaluated", "evaluated_nodes.own_names",
                     "evaluated_nodes._own_strings", "signatures._parameters", "source.own_nodes", "source.string_constants")
    ),
    "blocks": ("sim.run.tape._current", "sim.sdk.as_nki._OPEN", "sim.options.BLOCK", "tools.tuning.noticing._noticing"),
    "tests/adapters/test_interrupts.py": (
        "adapters.call_log._rows", "adapters.call_log._warned", "sim.execution.current_machine._thread",
        "sim.execution.numerics._lock",
        "sim.execution.numerics._thread", "sim.execution.numerics._before", "sim.execution.numerics._limited",
        "sim.execution.numerics._open", "sim.execution.numerics._openblas", "backends.simulator._backends",
        "backends.simulator.simulator_backend", "backends.simulator._kernel",
    ),
}  # fmt: skip
_PURE = "functools' cache of a function that has no state: an interrupt leaves no entry"
_IMPORT = "filled where modules are imported, and never again"
_ONE_STORE = "one assignment, of a value that is complete"
REASONS = {
    _PURE: (
        "backends.neuron.neuron_backend", "backends.neuron_sources.digest", "backends.simulator._source_hash",
        "chips.measurements.simulated_rows", "chips.prices.instances", "chips.prices.economics", "chips.prices._file",
        "lang.features", "lang._speaks", "tools.bench_tasks._tasks_digest", "tools.correlate.variable_us",
        "tools.judging.traced._uses", "tools.latency._eager_head_us", "tools.model_bench.rank_interval._counts",
        "tools.subjects.events_of", "tools.tuning.study.laws", "tools.verify_oracle._code",
    ),
    _IMPORT: ("sim.constraints.operand_kinds._PARAMETERS", "sim.constraints.rule.RULES", "sim.isa.operators.OPERATORS",
              "tools.kernel_lint.rule.RULES"),
    _ONE_STORE: (
        "backends.neuron_eager._warned", "settings._process", "tools.judging.traced._places", "tools.tuning.noticing._hooked",
        "tools.kernel_lint.evaluation.operators._fresh",
    ),
    "stored after the op is registered with torch_neuronx, which is asked of devices only": ("backends.neuron_op._registered",),
    "a context variable, which a token resets in `finally`": ("lang._language", "settings._block", "sim.beside._allowed"),
    "stored once a module is executed; one that is not is taken out of sys.modules again": ("lang._loaded",),
    "ends its process and starts a new one after an interrupt (tests/tools/test_judge.py)": ("tools.judging.client._server",),
    "of a process of its own, that the judge ends": ("tools.judging.traced._now",),
}  # fmt: skip


def test_all_that_is_kept_is_injected_or_named_with_a_reason():
    injected = {f"nki_hf.{name}" for names in INJECTED.values() for name in names}
    named = {f"nki_hf.{name}" for names in REASONS.values() for name in names}
    assert not injected & named
    assert kept() == injected | named
