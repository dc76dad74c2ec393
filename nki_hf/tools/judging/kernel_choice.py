"""Which kernel of a file is meant: the one that is named, or the only one."""

from __future__ import annotations

import inspect
from typing import Any

from nki_hf.sim.run.launch import Kernel

__all__ = ["NoKernel", "kernel_in"]


class NoKernel(ValueError):
    """The file has no such kernel, or what it has is none."""


def kernel_in(module: Any, file: str, name: str) -> tuple[Kernel, str]:
    """The kernel of that name, or the only one, and its name; a ValueError says what the module has."""
    kernel, name = _named(module, file, name)
    if inspect.isgeneratorfunction(kernel.function) or inspect.iscoroutinefunction(kernel.function):
        raise NoKernel(f"{name} is a generator or a coroutine (it says yield or async): a kernel is a function that returns.")
    return kernel, name


def _named(module: Any, file: str, name: str) -> tuple[Kernel, str]:
    own = getattr(module, "__name__", "")
    kernels = {key: value for key, value in vars(module).items() if isinstance(value, Kernel)}
    if name:
        found = getattr(module, name, None)
        if isinstance(found, Kernel):
            return found, name
        if callable(found):
            raise NoKernel(f"{name} is a plain function, no kernel: decorate it with @nki.jit (import nki).")
        raise NoKernel(f"{file} has no kernel {name!r}: it has {', '.join(kernels) or 'none that is decorated with @nki.jit'}.")
    local = {key: value for key, value in kernels.items() if getattr(value.function, "__module__", own) == own}
    entries = {key: value for key, value in local.items() if not key.startswith("_")} or local
    if len(entries) == 1:
        return next(iter(entries.values())), next(iter(entries))
    if not entries:
        functions = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == own]
        what = f"functions {', '.join(functions[:5])}" if functions else "no function"
        raise NoKernel(f"{file} has no kernel: it has {what}, none decorated with @nki.jit. Add `import nki` and `@nki.jit`.")
    raise NoKernel(f"{file} has {len(entries)} kernels: name one, as in {file}:{next(iter(entries))} ({', '.join(entries)}).")
