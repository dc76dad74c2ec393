"""Random kernels of what `wide_programs` does not draw either: each step stands with its model in a rare_*.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tools.fuzz.kernel_programs import TILES, Step, draw_instruction, draw_spot, draw_view
from tools.fuzz.rare_activations import ACTIVATIONS
from tools.fuzz.rare_control import CONTROL
from tools.fuzz.rare_engines import ENGINES
from tools.fuzz.rare_indexed import INDEXED
from tools.fuzz.rare_language import LANGUAGE
from tools.fuzz.rare_low_precision import LOW_PRECISION
from tools.fuzz.rare_moves import MOVES
from tools.fuzz.rare_operators import OPERATORS
from tools.fuzz.rare_products import PRODUCTS
from tools.fuzz.rare_random import RANDOM
from tools.fuzz.rare_site import Array, Draw, Rare, Seen, Site, as_type
from tools.fuzz.rare_views import VIEWS
from tools.fuzz.wide_programs import draw_wide

__all__ = ["RARE", "draw_rare", "issue_rare", "rare_result"]

RARE: dict[str, Rare] = {
    **ACTIVATIONS,
    **ENGINES,
    **PRODUCTS,
    **LOW_PRECISION,
    **RANDOM,
    **INDEXED,
    **MOVES,
    **VIEWS,
    **OPERATORS,
    **LANGUAGE,
    **CONTROL,
}
"""By name, in the order from which a seed draws."""

_DRAWN = [*RARE, *["called", "called alone"] * 3, *["made", "indexed", "turned", "folded"]]
"""Those with many names or forms more often."""


def draw_rare(seed: int) -> Step:
    """A program of that seed."""
    program, rng = draw_wide(seed), np.random.default_rng([seed, 8])
    program["chip"] = str(rng.choice(["trn1", "trn2", "trn2", "trn3", "trn3", "trn3"]))
    if program["chip"] == "trn1":
        program["cores"] = 1
    if rng.random() < 0.4:  # whole groups, which some instructions want
        program["shape"] = (int(rng.choice([32, 64, 96, 128])), *program["shape"][1:])
    steps = []
    while len(steps) < int(rng.integers(2, 6)):
        if rng.random() < 0.2:
            steps.append(draw_instruction(rng, program))
        else:
            step = _step(rng, program)
            if step is not None:
                steps.append(step)
    program["steps"] = steps
    return program


def _step(rng: np.random.Generator, program: Step) -> Step | None:
    spot = draw_spot(rng, program)
    if rng.random() < 0.4:
        spot["partitions"] = (0, program["shape"][0])

    def reading() -> Step:
        return draw_view(rng, program, str(rng.choice(TILES)), spot, reads=True)

    what = str(rng.choice(_DRAWN))
    step = {"op": "rare", "what": what, "data": reading(), "chip": program["chip"], "cores": program["cores"]}
    step["type"] = str(rng.choice(["float32", "float32", "bfloat16"]))
    fields = RARE[what].draw(Draw(rng, program, reading))
    return None if fields is None else {**step, **fields}


def issue_rare(step: Step, tiles: dict[str, Any], view: Callable[[Step], Any], program: Step, core: Any) -> Any:
    """Issue one step; the tile with its result."""
    return RARE[step["what"]].issue(Site(step, tiles, view, program, core))


def rare_result(step: Step, raw: Callable[[Step], Array], state: dict[str, Array], which: int) -> tuple[Array, Any]:
    """Values `[partitions, elements]` and slack, as `wide_result` gives them."""
    with np.errstate(all="ignore"):
        seen = Seen(step, state, raw, which)
        values, slack = RARE[step["what"]].model(seen)
    if seen.kind is not None and state["result"].dtype != as_type(seen.kind):
        raise AssertionError(f"the result of {step['what']} is {state['result'].dtype}, not {seen.kind}")
    return values.reshape(len(values), -1), slack
