"""Kernel code evaluated as a front end does it: Python's values as they are, what a launch would give unknown, tiles by size."""
