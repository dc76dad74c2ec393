"""What the front end of an nki version takes: the source it parses or traces, and the state that a kept kernel stands on."""

import functools
import inspect
from enum import Enum

from fake_neuron.machine import MACHINE
from fake_neuron.rules import refuse
from nki_hf.sim.language import NKIObject
from nki_hf.tools.kernel_lint import RULES, VERSIONS, lint

__all__ = ["check_constant", "check_source", "check_unchanged", "read_globals"]

CONSTANTS = (type(None), bool, int, float, str)


def check_source(function):
    """Refuse a kernel whose module the running nki version is documented to reject."""
    version = ".".join(MACHINE.nki_version.split(".")[:2])
    for finding in _findings(inspect.getsourcefile(function), version):
        place = f"{finding.file}:{finding.line}"
        refuse("front-end", f"nki {version} rejects {place}: {finding.rule}: {finding.message} ({RULES[finding.rule].why})")


@functools.cache
def _findings(file, version):
    assert version in VERSIONS, version
    return [
        found
        for row in lint(file, (version,))
        for found in row.findings[version]
        if RULES[found.rule].refused and found.rule not in ("changing-global", "environment")  # see kernel-pure
    ]


def check_constant(kernel, name, value, is_tensor):
    """Refuse a compile-time argument of a kind that nki does not document."""
    if isinstance(value, tuple):
        for item in value:
            if is_tensor(item):
                refuse("tensor-top-level", f"{kernel}: {name} is a tuple with a tensor inside")
            check_constant(kernel, name, item, is_tensor)
    elif isinstance(value, NKIObject):
        for field, item in vars(value).items():
            if is_tensor(item):
                refuse("tensor-top-level", f"{kernel}: {name}.{field} is a tensor")
            check_constant(kernel, f"{name}.{field}", item, is_tensor)
    elif isinstance(value, Enum) or type(value).__name__ == "DType":
        return
    elif type(value) not in CONSTANTS or (type(value) is int and not -(2**31) <= value < 2**31):
        refuse("constant-kind", f"{kernel}: {name} is {value!r}, a {type(value).__name__}")


def read_globals(function):
    """(namespace, name, value as text) of every plain global that the kernel and the functions it calls read."""
    found, waiting, seen = [], [function], set()
    while waiting:
        current = waiting.pop()
        if current.__code__ in seen:
            continue
        seen.add(current.__code__)
        for name in current.__code__.co_names:
            value = current.__globals__.get(name)
            if inspect.isfunction(value):
                waiting.append(value)
            elif isinstance(value, bool | int | float | str | tuple | list | dict | set):
                found.append((current.__globals__, name, repr(value)))
    return found


def check_unchanged(kernel, known):
    """Refuse to use a kept kernel whose globals have changed since it was compiled."""
    for namespace, name, before in known:
        if repr(namespace.get(name)) != before:
            refuse("kernel-pure", f"{kernel} was compiled with {name}={before}, which is {namespace.get(name)!r} now")
