"""Planted faults are noticed by the check that should notice them; the full study is tools/mutation/flash_prefill.py."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.mutation.flash_prefill import BATTERY, SOURCE, chosen, examine
from tools.mutation.mutants import CLASSES, mutants
from tools.mutation.replacing import replaced_once

CAUSAL, CORES, BOUNDS = "causal, grouped heads", "two cores that share one head", "run-time bounds on trn1"


def replaced(*pairs):
    """The kernel's source with each old text, which must be there, replaced by the new one."""
    source = SOURCE
    for old, new in pairs:
        source = replaced_once(source, old, new)
    return source


@pytest.mark.parametrize("name", [CAUSAL, BOUNDS])
def test_the_unchanged_kernel_passes(name):
    assert examine(SOURCE, problems=[name]) == ("missed", "")


FAULTS = [
    ("constraint", CAUSAL, [("scores = nl.ndarray((rows, width)",
                             "scores = nl.ndarray((rows, 2 * width)")]),
    ("constraint", CAUSAL, [("dst=running, data=running, op0=nl.multiply, operand0=work[\"correction\"], op1=nl.add, "
                             "operand1=result", "dst=running, data=result, op0=nl.multiply, "
                             "operand0=work[\"correction\"], op1=nl.add, operand1=result")]),
    ("constraint", CAUSAL, [("scores = nl.ndarray((rows, width), dtype=nl.float32",
                             "scores = nl.ndarray((rows, width), dtype=nl.bfloat16")]),
    ("memory", CAUSAL, [("nisa.dma_copy(dst=piece, src=k[batch, head, d : d + depth, begin:end])", "pass")]),
    ("memory", CAUSAL, [("accumulator = nl.ndarray((rows, width_v), dtype=nl.float32, buffer=nl.sbuf)",
                         "accumulator = nl.ndarray((rows, width_v), dtype=nl.float32, buffer=nl.sbuf, "
                         "address=(0, 0))")]),
    ("race", CORES, [("program, programs = nl.program_id(axis=0), nl.num_programs(axes=0)", "program, programs = 0, 1")]),
    ("value", CAUSAL, [("nisa.activation(dst=correction, op=nl.exp, data=work[\"before\"], bias=shift, scale=-1.0)",
                         "nisa.activation(dst=correction, op=nl.exp, data=work[\"before\"], bias=shift, scale=1.0)")]),
    ("value", CAUSAL, [("start = env[\"q_offset\"] + row + env[\"ahead\"]",
                        "start = env[\"q_offset\"] + row + env[\"ahead\"] - 1")]),
    ("value", BOUNDS, [("op0=nl.greater_equal, operand0=lower", "op0=nl.greater, operand0=lower")]),
]  # fmt: skip
"""The check that must notice a fault, the problem that shows it, and the fault as old and new pieces of the source."""


@pytest.mark.parametrize("pairs", [pairs for _, _, pairs in FAULTS])
def test_every_fault_still_fits_the_source(pairs):
    assert replaced(*pairs) != SOURCE


@pytest.mark.slow
@pytest.mark.parametrize(("column", "name", "pairs"), FAULTS)
def test_each_check_notices_the_faults_that_are_its_own(column, name, pairs):
    found, detail = examine(replaced(*pairs), problems=[name])
    assert found == column, detail


def test_there_are_mutants_of_every_class_and_each_changes_the_program():
    found = mutants(SOURCE)
    assert {mutant.kind for mutant in found} == set(CLASSES)
    assert len(found) >= 60
    original = ast.unparse(ast.parse(SOURCE))
    for mutant in chosen(found, 1):
        planted = mutant.plant(SOURCE)
        assert planted != original
        compile(planted, "mutant.py", "exec")


@pytest.mark.parametrize("kind", ["dropped instruction", "swapped operands"])
def test_a_sample_of_generated_mutants_is_noticed(kind):
    for mutant in chosen([item for item in mutants(SOURCE) if item.kind == kind], 2):
        column, _ = examine(mutant.plant(SOURCE))
        assert column != "missed", mutant


@pytest.mark.slow
def test_the_battery_passes_on_the_unchanged_kernel():
    assert examine(SOURCE) == ("missed", "")
    assert len(BATTERY) >= 8
