"""The machine's rules, as data: one `Rule` per documented limit, looked up by instruction."""

from __future__ import annotations

from nki_hf.sim.constraints.initialized import check_written
from nki_hf.sim.constraints.operand_kinds import refuse_non_tensors
from nki_hf.sim.constraints.rule import RULES, Operands, Rule, check, rule

__all__ = ["RULES", "Operands", "Rule", "check", "check_written", "refuse_non_tensors", "rule"]

from nki_hf.sim.constraints import (  # noqa: F401  (they fill RULES)
    accumulators,
    choices,
    cores,
    dma,
    families,
    psum_words,
    scalar_engine,
    searches,
    tensor_engine,
    transposes,
    vector_engine,
)
