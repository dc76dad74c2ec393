"""The kernel of `--against` beside a kernel that is wrong: the first tile in which they differ, if the other one is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nki_hf.chips import Chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions
from nki_hf.sim.run.play import BadTape
from nki_hf.tasks import Task
from nki_hf.tools.judging.first_difference import first_difference
from nki_hf.tools.judging.ours import packed_by
from nki_hf.tools.judging.values import Run, checked, drawn, run_tape, to_kernel

__all__ = ["compared"]


def compared(
    request: Mapping[str, Any], record: dict[str, Any], task: Task, run: Run, trace: Mapping[str, Any], chip: Chip
) -> dict[str, Any] | None:
    """See `first_difference`; None without `--against`, and with a warning where the other kernel cannot show anything.

    Args:
      request, record: of the judgement.
      task, run, trace, chip: the kernel's at the first size.
    """
    other = request.get("against")
    if other is None:
        return None
    if request["lnc"] != 1 or other["answer"]["error"] is not None:
        why = "it did not run" if other["answer"]["error"] is not None else "launches on two cores are not compared"
        record["warnings"].append(f"--against {other['file']} shows no first difference: {why}")
        return None
    asked, parent = next(
        pair for pair in zip(other["traces"], other["answer"]["traces"], strict=True) if pair[0]["size"] == run.size
    )
    packed = packed_by(other["file"], other["answer"]["name"], task, chip, request["lnc"])
    theirs = replace(
        run,
        layout=other["layout"] if packed is None else {"out": packed.out},
        packed=None if packed is None else packed.arrays(asked["size"], run.dtype),
    )
    arrays = drawn(run, "normal", request["seed"])
    options = SimOptions(chip=chip, third_party=True)
    try:
        first = run_tape(parent, to_kernel(theirs, arrays), options, 1)
        right = checked(theirs, parent, options, 1, request["seed"], ("normal",), first, arrays)
        if right.count or any(outcome.wrong is not None for outcome in right.outcomes):
            record["warnings"].append(f"--against {other['file']} shows no first difference: it is wrong itself")
            return None
        return first_difference(trace, to_kernel(run, arrays), parent, to_kernel(theirs, arrays), options)
    except (KernelFault, BadTape) as error:
        record["warnings"].append(f"--against {other['file']} shows no first difference: {error}")
        return None
