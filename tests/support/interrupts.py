"""KeyboardInterrupt (Ctrl-C) at any line of some modules, by a tracer."""

import linecache
import sys

__all__ = ["InterruptAt", "every_line"]


class InterruptAt:
    """Raise KeyboardInterrupt at the n-th line that runs in the given files, on this thread.

    A line that begins a `with` block is left out: Python reports it a second time when the block ends, where a tracer can
    raise before the exit is called, and an interrupt cannot.
    """

    def __init__(self, number, *modules, functions=None):
        self.number, self.seen, self.files = number, 0, {module.__file__ for module in modules}
        self.functions = functions

    def __enter__(self):
        sys.settrace(self.on_call)
        return self

    def __exit__(self, kind, *rest):
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def on_call(self, frame, event, argument):
        code = frame.f_code
        looked_at = code.co_filename in self.files and (self.functions is None or code.co_name in self.functions)
        return self.on_line if looked_at else None

    def on_line(self, frame, event, argument):
        if event == "line":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if not line.startswith(("with ", "finally", "stop.set", "for thread in others", "thread.join", "if thread.ident")):
                self.seen += 1
                if self.seen == self.number:
                    sys.settrace(None)
                    raise KeyboardInterrupt
        return self.on_line


def every_line(work, *modules, check, stride=1, functions=None):
    """Run `work` interrupted at its first line, its second, ... until none is left; `check` after each.

    `functions`: names of those whose lines count; None = all.
    """
    number = 1 - stride
    while True:
        number += stride
        with InterruptAt(number, *modules, functions=functions) as tracer:
            work()
        reached = tracer.seen >= number
        check()
        if not reached:
            return number - 1
