"""Names of the language that a version lacks: not yet there, gone, or deprecated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from nki_hf import sim
from nki_hf.sim import isa, language
from nki_hf.sim.surface import NAMESPACES
from nki_hf.tools.kernel_lint.instead import GONE, INSTEAD, SINCE, instead
from nki_hf.tools.kernel_lint.rule import VERSIONS, Found, Module, rule

VIEWS = (
    "slice", "select", "permute", "broadcast", "expand_dim", "squeeze_dim", "reshape_dim", "flatten_dims", "rearrange",
    "vector_select", "is_contiguous", "is_indirect", "indirect",
)  # fmt: skip
"""View methods of tensors, which came with 0.5."""

DEPRECATED = (
    "nl.tile_size.psum_fmax",
    "nl.tile_size.total_available_sbuf_size",
    "nisa.tensor_engine",
    "nisa.vector_engine",
    "nisa.scalar_engine",
    "nisa.gpsimd_engine",
)

_NEW_JIT_ARGUMENTS = ("compile_config", "specialization_config")


def _from(version: str) -> tuple[str, ...]:
    return VERSIONS[VERSIONS.index(version) :]


def _before(version: str) -> tuple[str, ...]:
    return VERSIONS[: VERSIONS.index(version)]


def _names_rule(name: str, versions: tuple[str, ...], why: str, names: tuple[str, ...], *, refused: bool = True) -> None:
    @rule(name, versions, why, refused=refused)
    def _find(module: Module) -> Found:
        for node, used in module.attributes:
            if used in names:
                yield node, f"{used}: {INSTEAD[used]}" if used in INSTEAD else used


for _version, _names in SINCE.items():
    _names_rule(f"new-in-{_version}", _before(_version), f"these names came with {_version}", _names)
for _version, _names in GONE.items():
    _names_rule(f"gone-in-{_version}", _from(_version), f"these names are gone since {_version}", _names)
_names_rule(
    "deprecated",
    VERSIONS,
    "deprecated in the stubs, still taken: use nisa.engine, 512, a budget of your own",
    DEPRECATED,
    refused=False,
)


@rule("old-namespace", _from("0.4"), "migration guide 0.4.0: neuronxcc.nki inside kernels is an error; import nki")
def _old_namespace(module: Module) -> Found:
    used = {ast.unparse(node) for node in module.inside if isinstance(node, ast.Name | ast.Attribute)}
    for node in ast.walk(module.tree):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        bound = {alias.asname or alias.name for alias in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set()
        if modules and all(name.startswith("neuronxcc.nki.typing") for name in modules) and not bound & used:
            continue  # for annotations only, which no front end evaluates
        for name in modules:
            if name.startswith("neuronxcc.nki") or name in ("neuronxcc", "torch_neuronx.nki_jit", "torch_neuronx.nki"):
                yield node, ast.unparse(node)


@rule("jit-platform", VERSIONS, "migration guide 0.3.0: jit(platform_target=) is an error; set NEURON_PLATFORM_TARGET_OVERRIDE")
def _jit_platform(module: Module) -> Found:
    for decorator, word in _jit_words(module):
        if word == "platform_target":
            yield decorator, ast.unparse(decorator)


@rule(
    "jit-arguments", VERSIONS, "migration guide 0.3.0: jit(mode=) is ignored and goes; others are not documented", refused=False
)
def _jit_arguments(module: Module) -> Found:
    for decorator, word in _jit_words(module):
        if word not in (*_NEW_JIT_ARGUMENTS, "platform_target"):
            yield decorator, ast.unparse(decorator)


def _jit_words(module: Module) -> Iterator[tuple[ast.expr, str]]:
    for function in module.entries:
        for decorator in function.decorator_list:
            for word in decorator.keywords if isinstance(decorator, ast.Call) else []:
                yield decorator, word.arg or ""


@rule("compile-config", _before("0.7"), "release notes 0.7: compile_config and specialization_config of nki.jit are new")
def _compile_config(module: Module) -> Found:
    for function in module.entries:
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and any(word.arg in _NEW_JIT_ARGUMENTS for word in decorator.keywords):
                yield decorator, ast.unparse(decorator)


@rule("view-method", _before("0.5"), "release notes 0.5.0: view methods of tensors; use slices, nl.ds and .ap")
def _view_method(module: Module) -> Found:
    for use in module.uses.of(module.functions, "tile"):
        if use.name in VIEWS:
            yield use.call, f"{ast.unparse(use.call.func)}()"


@rule("unknown-name", VERSIONS, "no public stub or release note of nki has this name")
def _unknown_name(module: Module) -> Found:
    told = {name for names in (*SINCE.values(), *GONE.values(), DEPRECATED) for name in names}
    for node, used in module.attributes:
        space, _, rest = used.partition(".")
        first, _, member = rest.partition(".")
        known = _SPACES.get(space)
        if known is None or used in told or f"{space}.{first}" in told or not rest:
            continue
        if first not in known:
            if not member:
                yield node, f"{used}: {instead(first, [_MODULES.get(space, sim)], used)}"
        elif member.isidentifier() and first in _MEMBERS[space] and not hasattr(getattr(_MODULES[space], first), member):
            yield node, used


_MODULES = {"nl": language, "nisa": isa}
_SPACES = {
    "nl": {*NAMESPACES["nki.language"], *dir(language), "bool", "range"},  # the last two: in public kernels that compile
    "nisa": {*NAMESPACES["nki.isa"], *dir(isa), "constants"},
    "nki": {
        *NAMESPACES["nki"],
        *dir(sim),
        *(name.split(".")[1] for name in NAMESPACES if "." in name),
        "language",
        "isa",
        "dtype",
    },
}
_MEMBERS = {
    "nl": ("tile_size",),
    "nki": (),
    "nisa": tuple(name for name in dir(isa) if isinstance(getattr(isa, name), type) and issubclass(getattr(isa, name), Enum)),
}
"""What has a closed list of members: enums and the sizes."""
