"""NKIObject: the base class of configuration objects that kernels pass around."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["NKIObject"]

_NOT_FIELDS = (type, staticmethod, classmethod, property)


class NKIObject:
    """Base class of a kernel's dataclasses.

    Class attributes without an annotation are fields too, with and without `@dataclass` (source: NKI language guide,
    "Class Support"). A subclass that defines no `__init__` gets one that takes the fields in the order of the class
    body, missing ones being None, and then calls `__post_init__`.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__slots__" in cls.__dict__:
            return
        annotations = dict(inspect.get_annotations(cls))
        for name, value in list(cls.__dict__.items()):
            hidden = name.startswith("__") or name in annotations
            # a dataclass refuses unhashable defaults, so lists and dicts stay plain class attributes
            if hidden or callable(value) or isinstance(value, _NOT_FIELDS) or type(value).__hash__ is None:
                continue
            annotations[name] = type(value)
        cls.__annotations__ = annotations

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = list(dict.fromkeys(n for cls in reversed(type(self).__mro__) for n in inspect.get_annotations(cls)))
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} fields ({', '.join(names)}), {len(args)} were given.")
        given = dict(zip(names, args, strict=False))
        unknown = [name for name in kwargs if names and name not in names]
        twice = [name for name in kwargs if name in given]
        if unknown or twice:
            what = f"has no field {unknown[0]!r}" if unknown else f"got {twice[0]!r} twice"
            raise TypeError(f"{type(self).__name__} {what}: its fields are {', '.join(names)}.")
        given.update(kwargs)
        for name in names:
            setattr(self, name, given.pop(name, getattr(type(self), name, None)))
        for name, value in given.items():
            setattr(self, name, value)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Hook for subclasses; runs after the fields are set."""
