"""What a kernel's Python asks of the machine while it is loaded and traced: files, folders, modules, environment variables.

Python reports every file that it opens and every folder that it lists to audit hooks, those of imports, NumPy and pathlib
included, and the other programs that it starts. A finder that finds nothing, put before the others, hears of every module that
is looked for. Whether a path exists, the working folder and the machine are asked of `os`, variables of `os.environ`: both are
wrapped for as long as it takes. What native code does by itself is not noticed, nor are the clock and random numbers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import nki_hf
from nki_hf import from_source

__all__ = ["EVERY_VARIABLE", "INSTALLED", "KNOWN", "Noticed", "noticing"]

EVERY_VARIABLE = "*"
"""Stands for the whole environment; no variable can have this name in a shell."""
_WRITES = os.O_WRONLY | os.O_RDWR
_ASKING = ("stat", "lstat", "access", "readlink")
_WORKING = ("getcwd", "getcwdb")
_MACHINE = (
    "uname", "cpu_count", "process_cpu_count", "sched_getaffinity", "getloadavg", "getlogin", "getuid", "geteuid", "getgid",
    "getegid", "getgroups", "getpid", "getppid", "getpriority", "sysconf", "confstr", "pathconf", "statvfs", "times", "umask",
)  # fmt: skip
"""Functions of `os` whose answers no result names."""
_WHOLE = ("__iter__", "__len__", "__repr__")
_PROGRAMS = (
    "subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty", "os.getxattr", "os.listxattr",
    "socket.connect", "socket.bind", "socket.sendto", "socket.gethostname", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.gethostbyaddr", "socket.getnameinfo", "socket.getservbyname", "socket.getservbyport",
)  # fmt: skip
"""Events that reach beyond Python."""
_LOADS = ("ctypes.dlopen", "sqlite3.connect")
"""Events whose argument is a file that native code opens."""


def _folders(*paths: str | Path) -> tuple[str, ...]:
    return tuple({place + os.sep for path in paths for place in (os.path.realpath(path), os.path.abspath(path))})


INSTALLED = _folders(
    *(sysconfig.get_paths()[name] for name in ("purelib", "platlib")),
    *(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")),
)
"""Folders of installed packages, the user's and the system's among them where this Python looks there."""
_STANDARD = ("<frozen ", *_folders(*(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib"))))
KNOWN = (
    *INSTALLED,
    *_STANDARD,
    "/proc/",
    "/sys/",
    "/dev/",
    *_folders(*(Path(nki_hf.__file__).parent / name for name in ("sim", "timing", "chips", "tools"))),
    *(place.rstrip(os.sep) for place in _folders(from_source.__file__)),
)
"""Where files are no part of a kernel, or are covered by the digest of the laws."""


@dataclass(kw_only=True)
class Noticed:
    """What was asked.

    Attributes:
      files: full paths that were opened for reading, there or not, and of folders that were listed.
      entries: full paths of folders that were listed with what their entries are (`os.scandir`).
      asked: full paths of which it was asked whether they exist, what or where they are, or what may be done with them.
      modules: modules that the kernel looked for, there or not, with the folders in which Python looks.
      variables: names of environment variables, set or not; `EVERY_VARIABLE` for all.
      programs: what cannot be noted, as the audit events or Python call it: it reaches beyond files and variables.
      relative: True if a path was relative or the working folder was asked for.
    """

    files: set[str] = field(default_factory=set)
    entries: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    modules: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    programs: set[str] = field(default_factory=set)
    relative: bool = False


_noticing: list[Noticed] = []
_hooked: list[bool] = []


@contextmanager
def noticing(found: Noticed) -> Iterator[None]:
    """Block in which what Python asks goes into `found`; it may have been used before."""
    if not _hooked:
        sys.addaudithook(_hook)  # for good: hooks cannot be taken away
        _hooked.append(True)
    environment = type(os.environ)
    wrapped: list[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = []
    wrapped += [(os, name, _path_noted) for name in _ASKING]
    wrapped += [(os, name, _working_noted) for name in _WORKING]
    wrapped += [(os, name, _machine_noted) for name in _MACHINE if hasattr(os, name)]
    wrapped += [(platform, name, _machine_noted) for name in ("uname", "platform")]  # which remember what os.uname said
    wrapped += [(environment, "__getitem__", _variable_noted), *((environment, name, _variables_noted) for name in _WHOLE)]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in wrapped]
    try:
        _noticing.append(found)
        sys.meta_path.insert(0, _Lookups)
        for (owner, name, noted), (*_, real) in zip(wrapped, before, strict=True):
            setattr(owner, name, noted(real))
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)
        if _Lookups in sys.meta_path:
            sys.meta_path.remove(_Lookups)
        _noticing[:] = [each for each in _noticing if each is not found]


class _Lookups:
    """The finder that finds nothing. What installed packages look for is theirs."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        if _noticing and _by_kernel(nearest=True):
            folders = (os.path.abspath(folder or os.curdir) for folder in (sys.path if path is None else path))
            _noticing[-1].modules.add((name, tuple(folders)))


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _noticing:
        return
    if event == "open":
        if not (arguments[2] or 0) & _WRITES:
            _note(_noticing[-1].files, arguments[0])
    elif event in ("os.listdir", "os.scandir"):  # of imports not: what they import is opened
        if not sys._getframe(1).f_code.co_filename.startswith("<frozen importlib"):
            found = _noticing[-1]
            _note(found.entries if event == "os.scandir" else found.files, os.curdir if arguments[0] is None else arguments[0])
    elif event == "import" and arguments[1]:  # native code, which is loaded from this file
        _note(_noticing[-1].files, arguments[1])
    elif event in _LOADS and os.sep in str(arguments[0]):
        _note(_noticing[-1].files, arguments[0])
    elif event in _PROGRAMS and _by_kernel():
        _noticing[-1].programs.add(event)


def _note(paths: set[str], path: Any) -> None:
    if isinstance(path, str | bytes | os.PathLike):
        text = os.fsdecode(path)
        _noticing[-1].relative |= not os.path.isabs(text)
        with contextlib.suppress(OSError):  # the working folder is gone
            paths.add(os.path.abspath(text))
    elif paths is not _noticing[-1].files and _by_kernel():  # an open file's number: its contents are noted, not what it is
        _noticing[-1].programs.add("an open file's number")


def _path_noted(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def asked(path: Any, *more: Any, **options: Any) -> Any:
        if _noticing and _by_kernel():
            if options.get("dir_fd") is not None:
                _noticing[-1].programs.add("an open folder's number")
            _note(_noticing[-1].asked, path)
        return real(path, *more, **options)

    return asked


def _working_noted(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def asked() -> Any:
        if _noticing and _by_kernel():
            _noticing[-1].relative = True
        return real()

    return asked


def _machine_noted(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def asked(*arguments: Any, **options: Any) -> Any:
        if _noticing and _by_kernel(nearest=True):  # packages ask this too, and for themselves
            _noticing[-1].programs.add(real.__name__)
        return real(*arguments, **options)

    return asked


def _variable_noted(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def read(environment: Any, name: Any) -> Any:
        if _noticing and _by_kernel() and isinstance(name, str | bytes):
            _noticing[-1].variables.add(os.fsdecode(name))
        return real(environment, name)

    return read


def _variables_noted(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def read(environment: Any) -> Any:
        if _noticing and _by_kernel():
            _noticing[-1].variables.add(EVERY_VARIABLE)
        return real(environment)

    return read


def _by_kernel(*, nearest: bool = False) -> bool:
    """True if a kernel's own Python asks, be it through a package; `nearest`: not through an installed one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(KNOWN):
            return True
        if nearest and (file.startswith(INSTALLED) or not file.startswith(_STANDARD)):
            return False
        frame = frame.f_back
    return False
