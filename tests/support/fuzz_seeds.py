"""Cases of a search, by their seeds, as a test."""

from tools.fuzz.search import KINDS

__all__ = ["nothing_wrong"]


def nothing_wrong(name, first, count):
    """Fails with the seed and the case that something is wrong with."""
    kind = KINDS[name]
    for seed in range(first, first + count):
        case = kind.draw(seed)
        if case is not None:
            why = kind.check(case)
            assert not why, f"seed {seed}: {why}\n{case}"
