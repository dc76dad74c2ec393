"""The table of rules for the documentation: `python -m nki_hf.sim.constraints.table > docs/constraints.md`."""

from __future__ import annotations

from nki_hf.sim.constraints import RULES, Rule
from nki_hf.sim.constraints.instructions import INSTRUCTIONS

__all__ = ["markdown"]

_HEAD = """# Constraints of the simulated machine

Every instruction is checked against these limits before it runs; the first one that is broken is a `KernelFault` with the
kernel's file and line, and `record.details["rule"]` is the name below. Limits marked *unsure* are inferred, or public
sources disagree: they are faults for kernels of this package and warnings for kernels written elsewhere
(`SimOptions(third_party=True)`). A *choice* refuses nothing: public sources disagree about what the call computes, the limit
says what it computes here, and every kernel that depends on it gets a `SimulatorWarning`. Each rule has a call that breaks it
in `tests/support/constraint_cases.py`.

What all checks cost, on against off: `python tools/cost_of_checks.py`.

This file is generated: `python -m nki_hf.sim.constraints.table > docs/constraints.md`.

Judged elsewhere: indices and slices (in sim/tensors/: indexing.py, views, chosen_elements.py), capacity, addresses, tiles that
overwrite each other (sim/run/overwritten.py), outputs (sim/run/outputs.py), reads of never-written memory
(sim/constraints/initialized.py), races (observers/races.py), registers and scalars (sim/tensors/registers.py and scalars.py).
Limits that an instruction needs for its own definition (axes of `tensor_reduce` and `dma_transpose`) are faults raised by it.

Choices that belong to no instruction, each with a warning where a kernel depends on it:

* `.ap(offset=N)` of a view that starts inside its tensor counts N from the view's start (its docstring); the access-pattern
  guide counts from the tensor's;
* an output element that one launch writes twice has the value of the last write in program order, and no document promises
  that order between queues (writes through run-time indices are not compared);
* a product with `accumulate=None` in a loop of run time, into a tile from outside of it, overwrites in the first turn and adds
  in later ones;
* `core_barrier` in a launch of one core has no effect.

A tensor is true wherever Python asks (`if t:`), as one that exists is while a kernel is built. Only what `nl.equal`, the other
comparisons, the logical functions and `nl.all` return has a truth, that of its values.

Not enforced, because they cannot be seen from the instruction or have no public definition:

* valid input ranges of activation functions: values are not inspected (`sin` extrapolates as documented);
* where the index of a scattered `dst` lies relative to the source (NeuronCore-v4): only the index's own quadrant and the
  index of gathered operands are checked, and only for explicit addresses, because other tiles have none until the run ends;
* the layout of scale tiles of `quantize_mx` and `nc_matmul_mx`: dtype and memory are checked, the published description of
  the quadrants is incomplete;
* values: run-time indices of `local_gather` are undefined out of bounds and are faults here, segment ids must not be negative;
* gaps that tiles without an address leave each other: their sum is judged, and each alone against the addressed tiles, because
  the compiler may place them better than first fit;
* writes through run-time indices over another tile's bytes: which bytes they touch is not known, so they overwrite nothing;
* one core per launch on trn1 (its logical core is one NeuronCore): `kernel[2]` runs there, so that a kernel's two-core form
  can be tested on every generation; instructions between the two cores are refused;
* 600-cycle dynamic addressing, port conflicts and everything else that only costs time.
"""


def markdown() -> str:
    """The whole document; rules that hold for all compute instructions are listed once."""
    shared: dict[tuple[str, str], list[Rule]] = {}
    for rules in RULES.values():
        for item in rules:
            shared.setdefault((item.name, item.limit), []).append(item)
    count = sum(map(len, RULES.values()))
    lines = [_HEAD, f"{count} rules ({len(shared)} different limits) of {len(RULES)} instructions.\n"]
    most = len(INSTRUCTIONS) - 2  # what writes no tile has no rule about writes
    common = {key: items for key, items in shared.items() if len(items) >= most}
    lines += ["## All compute instructions\n", *_table([items[0] for items in common.values()])]
    for opcode in sorted(RULES):
        own = [item for item in RULES[opcode] if (item.name, item.limit) not in common]
        if own:
            lines += [f"\n## {opcode}\n", *_table(own)]
    return "\n".join(lines) + "\n"


def _table(rules: list[Rule]) -> list[str]:
    head = ["| rule | kind | limit | source |", "|---|---|---|---|"]
    rows = (
        f"| {item.name}{_grade(item)} | {item.kind} | {item.limit} | {item.source} |".replace("<", "&lt;") for item in rules
    )
    return [*head, *rows]


def _grade(item: Rule) -> str:
    return " (choice)" if item.choice else "" if item.documented else " (unsure)"


if __name__ == "__main__":
    print(markdown(), end="")
