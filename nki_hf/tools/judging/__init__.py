"""The judge: one kernel file through load, lint, limits, memory, races, values and times. The kernel's Python runs in a process
of its own on shapes alone; what comes back is a tape, and everything that is judged is computed from it elsewhere.
"""
