"""Kernels of the tasks: each file has a `baseline`, written plainly, and a `best`, the fastest of ours for the judge."""
