"""All that the package keeps from one call for the next: found by a scan, and interrupted in a test or named with a reason."""

import ast
from pathlib import Path

import nki_hf

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
        "sim.execution.products.sums_alike", "lang.features", "lang._speaks",
        "tools.bench_tasks._tasks_digest", "tools.correlate.variable_us",
        "tools.judging.budget.slowness", "tools.judging.line_words._real", "tools.judging.traced._uses",
        "tools.latency._eager_head_us",
        "tools.model_bench.rank_interval._counts",
        "tools.subjects.events_of", "tools.tuning.study.laws", "tools.verify_oracle._code",
    ),
    _IMPORT: ("sim.constraints.operand_kinds._PARAMETERS", "sim.constraints.rule.RULES", "sim.isa.operators.OPERATORS",
              "tools.kernel_lint.rule.RULES"),
    _ONE_STORE: (
        "backends.neuron_eager._warned", "settings._process", "tools.judging.traced._places", "tools.tuning.noticing._hooked",
        "tools.kernel_lint.evaluation.operators._fresh", "tools.kernel_lint.evaluation.operators._kept",
        "tools.judging.tried_task._fine",
    ),
    "stored after the op is registered with torch_neuronx, which is asked of devices only": ("backends.neuron_op._registered",),
    "a context variable, which a token resets in `finally`": ("lang._language", "settings._block", "sim.beside._allowed"),
    "stored once a module is executed; one that is not is taken out of sys.modules again": ("lang._loaded",),
    "ends its process and starts a new one after an interrupt (tests/tools/test_judge.py)": ("tools.judging.client._server",),
    "of a process of its own, that the judge ends": (
        "tools.judging.traced._now", "tools.judging.under_way._note", "tools.judging.under_way._now",
        "tools.judging.under_way._spent",
    ),
}  # fmt: skip


def test_all_that_is_kept_is_injected_or_named_with_a_reason():
    injected = {f"nki_hf.{name}" for names in INJECTED.values() for name in names}
    named = {f"nki_hf.{name}" for names in REASONS.values() for name in names}
    assert not injected & named
    assert kept() == injected | named
