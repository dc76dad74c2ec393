"""Every instruction of nki.isa has a check on random operands."""

import importlib
import inspect
from pathlib import Path

from isa_operands import CHECKS

from nki_hf.sim import isa


def test_every_instruction_has_a_check_on_random_operands():
    listed = set()
    for path in sorted(Path(__file__).parent.glob("test_isa_*.py")):
        module = importlib.import_module(path.stem)
        listed |= set(getattr(module, "NAMES", ()))
    functions = {name for name in isa.__all__ if inspect.isfunction(getattr(isa, name))}
    assert functions - set(CHECKS) == set()
    assert functions - listed == set()
