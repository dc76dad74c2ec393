"""NKIObject: the base class of configuration objects that kernels pass around."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, get_origin

__all__ = ["NKIObject"]

_NOT_FIELDS = (type, staticmethod, classmethod, property)


class NKIObject:
    """Base class of a kernel's dataclasses.

    Class attributes without an annotation are fields too, with and without `@dataclass` (source: NKI language guide,
    "Class Support"). A subclass that defines no `__init__` gets one that takes the fields in the order of the class
    body, missing ones being None, and then calls `__post_init__`. `@dataclass` keeps that `__init__`, so that both forms of
    a class construct the same objects; what `dataclasses.field` says of defaults, `init` and `kw_only` holds in both.
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
        if "__init__" not in cls.__dict__ and _is_generated(cls.__init__):
            cls.__init__ = NKIObject.__init__  # type: ignore[method-assign]  # dataclass leaves what a class has alone

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields = _fields(type(self))
        name = type(self).__name__
        positional = [field.name for field in fields.values() if field.init and not field.kw_only]
        if len(args) > len(positional):
            raise TypeError(f"{name} takes {len(positional)} fields ({', '.join(positional)}), {len(args)} were given.")
        given = dict(zip(positional, args, strict=False))
        unknown = [key for key in kwargs if fields and not (key in fields and fields[key].init)]
        twice = [key for key in kwargs if key in given]
        if unknown or twice:
            what = f"has no field {unknown[0]!r}" if unknown else f"got {twice[0]!r} twice"
            raise TypeError(f"{name} {what}: its fields are {', '.join(key for key in fields if fields[key].init)}.")
        given.update(kwargs)
        passed_on = []  # InitVar: only __post_init__ sees it
        for field in fields.values():
            value = given.pop(field.name) if field.name in given else field.default()
            if field.init_only:
                passed_on.append(value)
            else:
                object.__setattr__(self, field.name, value)  # frozen dataclasses refuse their own
        for key, value in given.items():
            object.__setattr__(self, key, value)
        self.__post_init__(*passed_on)

    def __post_init__(self, *init_only: Any) -> None:
        """Hook for subclasses; runs after the fields are set, with the values of the fields that are an `InitVar`."""


class _Field(NamedTuple):
    name: str
    default: Callable[[], Any]
    init: bool = True
    kw_only: bool = False
    init_only: bool = False


def _is_generated(init: Any) -> bool:
    """True for NKIObject's own `__init__` and for those that `@dataclass` writes (they come from no file)."""
    code = getattr(init, "__code__", None)
    return init is NKIObject.__init__ or (code is not None and code.co_filename == "<string>")


def _fields(cls: type) -> dict[str, _Field]:
    """The fields of a class, those of its bases first."""
    found: dict[str, _Field] = {}
    for base in reversed(cls.__mro__):
        known: dict[str, Any] = base.__dict__.get("__dataclass_fields__", {})
        keyword_only = False
        for name, annotation in inspect.get_annotations(base).items():
            keyword_only = keyword_only or _is(annotation, dataclasses.KW_ONLY, "KW_ONLY")
            if _is(annotation, ClassVar, "ClassVar") or _is(annotation, dataclasses.KW_ONLY, "KW_ONLY"):
                continue
            value = known.get(name, getattr(cls, name, None))
            init_only = isinstance(annotation, dataclasses.InitVar) or _is(annotation, dataclasses.InitVar, "InitVar")
            found[name] = _field(name, value, keyword_only, init_only)
    return found


def _field(name: str, value: Any, keyword_only: bool, init_only: bool) -> _Field:
    if not isinstance(value, dataclasses.Field):
        return _Field(name, lambda: value, kw_only=keyword_only, init_only=init_only)
    missing = dataclasses.MISSING
    default: Callable[[], Any] = lambda: None  # noqa: E731
    if value.default_factory is not missing:
        default = value.default_factory
    elif value.default is not missing:
        default = lambda: value.default  # noqa: E731
    kw_only = keyword_only if value.kw_only is missing else bool(value.kw_only)
    return _Field(name, default, value.init, kw_only, init_only)


def _is(annotation: Any, wanted: Any, name: str) -> bool:
    """Whether an annotation, which may be text, is `wanted` or a form of it such as `ClassVar[int]`."""
    if isinstance(annotation, str):
        return annotation.split("[")[0].split(".")[-1].strip() == name
    return annotation is wanted or get_origin(annotation) is wanted
