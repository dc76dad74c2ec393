"""Every instruction of nki.isa has a check on random operands; the names without one are no instructions."""

import importlib
import inspect
from enum import Enum
from pathlib import Path

from isa_operands import CHECKS

from nki_hf.sim import isa
from nki_hf.sim.surface import NAMESPACES

WITHOUT = {
    "enumerations: test_surface compares their members": {
        "dge_mode", "dma_engine", "engine", "matmul_perf_mode", "nc_version", "oob_mode", "reduce_cmd",
    },
    "older names of members of `engine`": {
        "gpsimd_engine", "scalar_engine", "tensor_engine", "unknown_engine", "vector_engine",
    },
    "what instructions return or take, checked with them": {
        "NkiInstruction", "NkiInstruction.depends_on", "NkiScalar", "VirtualRegister",
    },
    "an exception": {"NkiValidationError"},
}  # fmt: skip
"""Names of nki.isa that are no instructions, by what they are instead."""


def test_every_public_name_has_a_check_on_random_operands_or_is_no_instruction():
    listed = set()
    for path in sorted(Path(__file__).parent.glob("test_isa_*.py")):
        module = importlib.import_module(path.stem)
        listed |= set(getattr(module, "NAMES", ()))
    excluded = set().union(*WITHOUT.values())
    assert set(NAMESPACES["nki.isa"]) == (set(CHECKS) & set(NAMESPACES["nki.isa"])) | excluded
    assert excluded & set(CHECKS) == set()
    assert set(CHECKS) - listed == set()


def test_what_has_no_check_cannot_be_issued():
    for kind, names in WITHOUT.items():
        for name in names:
            value = isa
            for part in name.split("."):
                value = getattr(value, part)
            is_enumeration = isinstance(value, type) and issubclass(value, Enum)
            assert is_enumeration == kind.startswith("enumerations")
            assert not inspect.isfunction(value) or name == "NkiInstruction.depends_on"
