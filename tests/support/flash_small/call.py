"""The calling contract of `flash_small`: keys with the heads outermost, output with the heads before the rows."""

from nki_hf.errors import Reason
from nki_hf.kernels.binding import Argument, Binding, Division, Output
from nki_hf.kernels.plan import Cost, Plan
from nki_hf.problem import DTYPES, Mask

LIMITS = {"seqlen_q": 128, "seqlen_kv": 512, "head_dim": 128, "head_dim_v": 512}
COUNTS = False
"""Whether the optional output is asked for."""


def plan(problem, target):
    """The plan, or why not."""
    checks = [(field, getattr(problem, field), f"must be at most {most}") for field, most in LIMITS.items()]
    found = [(field, value, limit) for field, value, limit in checks if value > LIMITS[field]]
    if problem.dtype not in DTYPES:
        found.append(("dtype", problem.dtype, f"must be one of {', '.join(DTYPES)}"))
    if problem.mask != Mask():
        found.append(("mask", problem.mask.kind, "must be none"))
    if problem.softcap is not None or problem.sink:
        found.append(("softcap", problem.softcap, "must be None, and no sink"))
    if problem.scale <= 0:
        found.append(("softmax_scale", problem.scale, "must be above 0"))
    if found:
        return tuple(Reason(kernel="flash_small", field=name, value=str(value), limit=limit) for name, value, limit in found)
    return Plan(
        constants={"softmax_scale": float(problem.scale), "count": COUNTS},
        passed=frozenset({"seen"} if COUNTS else ()),
        tiles={"keys": problem.seqlen_kv},
        entry="flash_small_loop" if "loops" in target.features else "flash_small",
        instructions=instructions(problem),
    )


def instructions(problem):
    """About how many instructions a launch has."""
    return problem.batch * problem.num_heads_q * (12 + 4 * -(-problem.seqlen_kv // 128))


BINDING = Binding(
    name="flash_small",
    package=__name__.rpartition(".")[0],
    arguments=(
        Argument(name="q", axes=("batch", "num_heads_q", "head_dim", "seqlen_q")),
        Argument(name="k", axes=("num_heads_kv", "batch", "head_dim", "seqlen_kv")),
        Argument(name="v", axes=("batch", "num_heads_kv", "seqlen_kv", "head_dim_v")),
    ),
    outputs=(
        Output(name="out", axes=("batch", "num_heads_q", "seqlen_q", "head_dim_v")),
        Output(name="lse", axes=("batch", "num_heads_q", "seqlen_q"), dtype="float32"),
        Output(name="seen", axes=("batch", "num_heads_q"), dtype="int32", optional=True),
    ),
    constants=("softmax_scale", "count"),
    plan=plan,
    cost=lambda problem, plan, target: Cost(us=1.0, why="one block a head"),
    division=Division(axes=("batch", "num_heads_kv"), group=True, worth={"seqlen_q": 128}),
    instructions=instructions,
)
