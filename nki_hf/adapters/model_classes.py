"""What is known of a model that asks for a mask: may it get sdpa's (bool, or None for causal), or only eager's (float)?

A float mask is right wherever eager is; a bool mask, and None for causal, only where every attention of the model asks
Transformers for its implementation and the model's class declares that it supports sdpa. What cannot be shown is not
assumed: such models get what eager would give them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers  # its classes are asked for when needed: importing them here would import this file again

__all__ = ["asks_by_its_file", "calling_model", "declines_sdpa", "model_asks", "model_like_sdpa", "overlays_blocks", "routing"]

_ASK = {"ALL_ATTENTION_FUNCTIONS", "AttentionInterface"}
_ATTEND = {
    "softmax",
    "Softmax",
    "log_softmax",
    "logsumexp",
    "exp",
    "MultiheadAttention",
    "multi_head_attention_forward",
    "scaled_dot_product_attention",
    "flex_attention",
    "eager_attention_forward",
    "sdpa_attention_forward",
}
"""Names of which every attention uses one: the scores' softmax, or somebody else's attention."""
_LIBRARIES = ("torch", "transformers", "nki_hf")
_CALL_DEPTH = 3  # functions of functions that are looked into


@torch.compiler.assume_constant_result
def routing(config_class: type) -> tuple[bool, bool] | None:
    """(every model class of this configuration asks for an implementation, every one of them supports sdpa).

    Model classes are the loaded subclasses of `PreTrainedModel` whose `config_class` is this one or a base of it. None:
    there is no such class, so nothing is known.
    """
    classes = _classes_of(config_class)
    if not classes:
        return None
    return all(_asks(each) for each in classes), all(each._supports_sdpa for each in classes)


def declines_sdpa(config_class: type, module: torch.nn.Module | None = None) -> bool:
    """True if there are model classes of this configuration and one of them can be run only as eager runs it.

    Args:
      config_class: the configuration's class.
      module: the layer that asks, which gets the answer of its first call again: its model's class was there by then.
    """
    if module is None or torch.compiler.is_compiling():
        return routing(config_class) not in (None, (True, True))
    known = _declining.get(module)
    if known is None or known[0] is not config_class:
        known = _declining[module] = config_class, declines_sdpa(config_class)
    return known[1]


_declining: WeakKeyDictionary[torch.nn.Module, tuple[type, bool]] = WeakKeyDictionary()


@torch.compiler.assume_constant_result
def overlays_blocks(config_class: type) -> bool:
    """True if some model of this configuration may let blocks of tokens see each other in both directions.

    That is, unless the files of all its classes, and of those that they extend, can be read and name no such blocks.
    """
    files = {owner.__module__ for each in _classes_of(config_class) for owner in each.__mro__}
    ours = (*_LIBRARIES, *sys.stdlib_module_names)
    written = [name for name in files if name.startswith("transformers.models.") or name.partition(".")[0] not in ours]
    return not written or any(_names_blocks(name) for name in written)


def model_like_sdpa(model: torch.nn.Module) -> bool:
    """True if this model, whatever was put into it, can be run as sdpa would run it.

    Its own modules are looked at, since a configuration's classes do not know what was exchanged after building, nor that a
    model is none of theirs.
    """
    if not isinstance(model, transformers.PreTrainedModel) or not model._supports_sdpa:
        return False
    kinds: set[Any] = {type(module) for module in model.modules()}
    return all(_passes_on(each) for each in kinds)


def model_asks(model: torch.nn.Module) -> bool:
    """True if every attention of this model, whatever was put into it, asks for its implementation; it may decline sdpa."""
    if not isinstance(model, transformers.PreTrainedModel):
        return False
    kinds: set[Any] = {type(module) for module in model.modules()}
    return all(_file_asks(each.__module__) if _shipped(each) else _passes_on(each) for each in kinds)


def calling_model() -> torch.nn.Module | None:
    """The model whose code is running: the nearest `PreTrainedModel` up the stack, else the outermost module, else None."""
    found = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, transformers.PreTrainedModel):
            return first
        if isinstance(first, torch.nn.Module):
            found = first
        frame = frame.f_back
    return found


def asks_by_its_file(model_class: Any) -> bool:
    """Transformers' own reading of a class's file; False where it cannot be read, as in a notebook."""
    try:
        return bool(model_class._can_set_attn_implementation())
    except (AttributeError, KeyError, OSError, TypeError):  # before 5.0 a class without a file raises
        return False


@functools.lru_cache(maxsize=4096)
def _names_blocks(module_name: str) -> bool:
    try:
        return "block_sequence_ids" in inspect.getsource(sys.modules[module_name])
    except (KeyError, OSError, TypeError):  # no file, as in a notebook
        return True


def _classes_of(config_class: type) -> list[Any]:
    # Not cached: a class may be defined at any time, and only those of loaded files exist.
    ours = {_identity(each) for each in config_class.__mro__ if each.__module__ != "transformers.configuration_utils"}
    return [
        each for each in _subclasses(transformers.PreTrainedModel) if _identity(getattr(each, "config_class", None)) in ours
    ]


def _identity(config_class: Any) -> Any:
    """The class itself; for remote code its names, since each file of a folder may load a copy of the class of its own."""
    package, _, rest = getattr(config_class, "__module__", "").partition(".")
    if package != "transformers_modules":
        return config_class
    return package, rest.rpartition(".")[2], config_class.__qualname__, getattr(config_class, "model_type", None)


def _subclasses(parent: Any) -> Iterator[Any]:
    for each in type.__subclasses__(parent):
        yield each
        yield from _subclasses(each)


def _shipped(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES


@functools.lru_cache(maxsize=4096)
def _asks(model_class: Any) -> bool:
    """True if nothing that the class is made of attends by itself, as far as its files show."""
    if _shipped(model_class):
        return asks_by_its_file(model_class)
    written = [each for each in model_class.__mro__ if not _shipped(each)]
    shipped = next(each for each in model_class.__mro__ if _shipped(each) and issubclass(each, transformers.PreTrainedModel))
    if shipped is not transformers.PreTrainedModel and not asks_by_its_file(shipped):
        return False
    return all(_passes_on(each) for owner in written for each in (owner, *_visible(owner)))


def _visible(owner: Any) -> Iterator[Any]:
    """The module classes that a class's file names: its own, and those that it imports."""
    names = vars(sys.modules.get(owner.__module__, ModuleType("gone")))
    for value in list(names.values()):
        inside = vars(value).values() if isinstance(value, ModuleType) and not _is_library(value) else (value,)
        for each in list(inside):
            if isinstance(each, type) and issubclass(each, torch.nn.Module):
                yield each


def _is_library(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] in (*_LIBRARIES, *sys.stdlib_module_names)


@functools.lru_cache(maxsize=4096)
def _passes_on(kind: Any) -> bool:
    """True if a module class asks for its attention, or cannot be an attention of its own."""
    if _shipped(kind):
        return _file_like_sdpa(kind.__module__)
    owned = (value for owner in kind.__mro__ if not _shipped(owner) for value in vars(owner).values())
    names = {name for value in owned for name in _names(value, _CALL_DEPTH)}
    if names & _ASK or not names & _ATTEND:
        return True
    forward = getattr(kind.forward, "__code__", None)
    # One input cannot bring a mask along.
    return forward is not None and forward.co_argcount <= 2 and not forward.co_kwonlyargcount and not forward.co_flags & 0x0C


@functools.lru_cache(maxsize=4096)
def _file_like_sdpa(module_name: str) -> bool:
    """The verdict on one file of a library, by the model classes in it; True if it has none."""
    return _file_asks(module_name) and all(each._supports_sdpa for each in _models_in(module_name))


@functools.lru_cache(maxsize=4096)
def _file_asks(module_name: str) -> bool:
    return all(asks_by_its_file(each) for each in _models_in(module_name))


def _models_in(module_name: str) -> list[Any]:
    """The model classes that a file of Transformers defines."""
    if not module_name.startswith("transformers.models."):
        return []
    found = vars(sys.modules[module_name]).values() if module_name in sys.modules else ()
    return [
        each
        for each in list(found)
        if isinstance(each, type) and issubclass(each, transformers.PreTrainedModel) and each.__module__ == module_name
    ]


def _names(value: Any, depth: int) -> Iterator[str]:
    """Every name that a function's code uses, and the code of what it calls or wraps outside the libraries."""
    function = getattr(value, "__func__", value)  # static and class methods
    if not isinstance(function, FunctionType):
        return
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    yield from names
    if not depth:
        return
    inner = [function.__globals__.get(name) for name in names]
    inner += [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]  # what a decorator wraps
    for each in inner:
        if isinstance(each, FunctionType) and each.__module__.partition(".")[0] not in _LIBRARIES:
            yield from _names(each, depth - 1)


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # named, and never assigned
        return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
