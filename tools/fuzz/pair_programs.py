"""Random kernels of two cores that meet often: in bodies of loops of run time, and in exchanges that are under way for a while.

What an exchange brings is stored late: at once, the store would wait for it. So the steps behind it run while it is under way,
and may overwrite what it sends.
"""

from __future__ import annotations

import numpy as np

from tools.fuzz.kernel_programs import (
    FLOATS,
    INTEGERS,
    MOST_TURNS,
    RESULTS,
    TILES,
    Step,
    draw_exchange,
    draw_instruction,
)

__all__ = ["draw_pair"]


def draw_pair(seed: int) -> Step:
    """A program of that seed."""
    rng = np.random.default_rng((seed, 2))
    shape = (int(rng.choice([1, 5, 32, 64, 128])), int(rng.integers(1, 4)), int(rng.integers(1, 7)))
    types = [str(rng.choice(FLOATS if rng.random() < 0.8 else INTEGERS)) for _ in TILES]
    types[1], types[3] = types[0], types[2]
    program: Step = {"seed": seed, "shape": shape, "types": types, "cores": 2}
    steps: list[Step] = []
    for _ in range(int(rng.integers(2, 6))):
        which = rng.random()
        if which < 0.35:
            steps.append(_loop(rng, program))
        elif which < 0.7:
            step = draw_exchange(rng, program)
            if step["op"] == "sendrecv":
                step.update(pipe=int(rng.integers(2)), late=bool(rng.random() < 0.7))
            steps.append(step)
        else:
            steps.append(draw_instruction(rng, program))
    return {**program, "steps": steps}


def _loop(rng: np.random.Generator, program: Step) -> Step:
    body = [draw_instruction(rng, program, left_out=RESULTS) for _ in range(int(rng.integers(1, 3)))]
    for _ in range(int(rng.integers(1, 3))):
        body.insert(int(rng.integers(len(body) + 1)), draw_exchange(rng, program))
    kind = str(rng.choice(["fori", "dynamic", "static"]))
    turns = [int(rng.integers(0, MOST_TURNS + 1)) for _ in range(2)]
    return {"op": "loop", "kind": kind, "turns": turns, "register": bool(rng.random() < 0.6), "body": body}
