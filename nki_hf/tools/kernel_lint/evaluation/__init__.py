"""Kernel code evaluated as a front end does it: Python's values as they are, a launch's as unknown, tiles by their sizes."""
