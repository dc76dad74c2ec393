"""One file per command-line verb; each has `run(...)`, which returns data, and `command`, which prints it."""
