"""The state of a run: memories, cores, loops, numerics."""
