"""What is said of timed sizes at which memory overflows: published kernels run so on the chip, by a compiler's spills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["overflow_warnings", "spoken"]


def spoken(times: Sequence[Mapping[str, Any]]) -> str:
    """The sentence of the first time, and at which sizes memory overflows.

    Args:
      times: rows of a record's `times`, at least one.
    """
    said = str(times[0]["sentence"])
    sizes = list(dict.fromkeys(row["size"] for row in times if row["spills"]))
    if not sizes:
        return said
    words = " and ".join(f"{size:,}" for size in sizes)
    return f"{said.rstrip('.')}; at size{'s' if len(sizes) > 1 else ''} {words} memory overflows and is spilled."


def overflow_warnings(times: Iterable[Mapping[str, Any]]) -> list[str]:
    """One for each time with an overflow; at a size of `--check` it is a fault of the stage memory instead."""
    return [_warning(row) for row in times if row["spills"]]


def _warning(row: Mapping[str, Any]) -> str:
    judged = row.get("values", "not judged") != "not judged"
    values = ", and values were judged as if memory were large enough" if judged else ""
    return (
        f"at size {row['size']:,} on {row['chip']} memory overflows: the time is that with spills, as a compiler makes them, "
        f"no value was computed with them{values} (judge --check {row['size']} --chip {row['chip']} judges memory there): "
        f"{row['spills'].rstrip('.')}"
    )
