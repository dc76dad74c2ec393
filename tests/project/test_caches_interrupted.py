"""An interrupt at any line of what fills a cache of the package leaves the next call right."""

import sys

import pytest
from cached_calls import PLANS, classes, decisions, equal, layers, packs, read_masks, restarts, stacks, told_keys
from cached_launches import launches, lints, references, rule
from interrupts import every_line

from nki_hf import dispatch
from nki_hf.adapters import decision, layouts, mask_values, masks, model_classes, recorded_weights
from nki_hf.adapters.packed import attend, mixed, pieces, segments
from nki_hf.kernels import registry
from nki_hf.sim import faults
from nki_hf.sim.isa import affine
from nki_hf.sim.run import play, tape
from nki_hf.sim.sdk import as_nki
from nki_hf.sim.stream import conflicts, footprint
from nki_hf.sim.tensors import casts
from nki_hf.tasks import attention_reference
from nki_hf.timing import instruction_kinds, workload
from nki_hf.tools.kernel_lint import evaluated_nodes, parser_values, source
from nki_hf.tools.kernel_lint import signatures as lint_signatures
from nki_hf.tools.kernel_lint.evaluation import statements
from nki_hf.tools.tuning import noticing

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
    assert every_line(work, module, check=lambda: equal(left(), before), functions=functions) > 3
