"""A pytest plug-in that runs every model of somebody else's tests under attn_implementation="nki".

    PYTHONPATH=tools/hf_suite pytest -p swap --swap nki ...

`nki` swaps by name: where Transformers would settle on "sdpa", or on its default, it settles on "nki". `as_sdpa` keeps the
name and puts nki_hf's functions behind it, which tells apart what fails for the name alone. Tests stay as they are.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of this plug-in."""
    choices = ("nki", "as_sdpa", "none")
    parser.getgroup("swap").addoption("--swap", choices=choices, default="nki", help="none: the tests as they are")


def pytest_configure(config: pytest.Config) -> None:
    """Swap, before any test is collected."""
    add_tester_defaults(Path.cwd() / "checkout_testing_utils.py")
    swap = config.getoption("--swap")
    if swap == "nki":
        swap_by_name()
    elif swap == "as_sdpa":
        swap_in_place()


def swap_in_place() -> None:
    """Put nki_hf's functions under the name "sdpa"."""
    from transformers import AttentionInterface, AttentionMaskInterface

    from nki_hf.adapters.mask_function import nki_mask
    from nki_hf.adapters.transformers import nki_attention

    AttentionInterface.register("sdpa", nki_attention)
    AttentionMaskInterface.register("sdpa", nki_mask)


def swap_by_name() -> None:
    """Let models settle on "nki" where they would settle on "sdpa" or on their default."""
    from transformers import PreTrainedModel

    import nki_hf  # noqa: F401  (registers "nki")

    original = PreTrainedModel.get_correct_attn_implementation

    def swapped(self: Any, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        settled = original(self, requested_attention, *args, **kwargs)
        return "nki" if settled == "sdpa" or requested_attention is None else settled

    PreTrainedModel.get_correct_attn_implementation = swapped


def add_tester_defaults(source: Path) -> None:
    """Give the installed test module the upper-case constants that only the checkout's has."""
    if not source.exists():
        return
    from transformers import testing_utils

    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name.lstrip("_").isupper() and not hasattr(testing_utils, name):
                try:
                    setattr(testing_utils, name, ast.literal_eval(node.value))
                except ValueError:
                    continue  # computed: no tester needs it
