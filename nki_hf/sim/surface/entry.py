"""One public name of the language: its signature and how far the simulator has it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STATUSES", "UNLISTED", "Entry", "approximate", "exact", "refused"]

STATUSES = ("exact", "approximate", "refused")
UNLISTED = "not in the stubs: "
"""Begins the note of a name that public kernels use and compilers take, and the stubs lack."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name.

    Attributes:
      status: `exact`: does what is documented; `approximate`: differs as `note` says; `refused`: raises, for the reason in
        `note`.
      signature: parameters in order with their defaults, `(a, b=0)`, of classes those of the constructor where it is
        documented; for enumerations the members, `{a=1, b=2}`; empty for values.
      note: how, or why not; for exact names a remark or nothing.
      since: version of NKI that introduced it, where that is later than 0.6.
    """

    status: str
    signature: str
    note: str = ""
    since: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status={self.status!r} is not known: it is one of {', '.join(STATUSES)}.")
        if self.status != "exact" and not self.note:
            raise ValueError(f"a name with status {self.status} needs a note that says how or why.")


def exact(signature: str = "", note: str = "", since: str = "") -> Entry:
    """A name that does what is documented."""
    return Entry("exact", signature, note, since)


def approximate(signature: str, how: str, since: str = "") -> Entry:
    """A name that differs from what is documented, as `how` says."""
    return Entry("approximate", signature, how, since)


def refused(signature: str, why: str, since: str = "") -> Entry:
    """A name that raises when it is used, for the reason `why`."""
    return Entry("refused", signature, why, since)
