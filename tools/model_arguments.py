"""Which keyword arguments the models of the installed Transformers can pass along to an attention function.

    python tools/model_arguments.py            # prints what is new, and what an attention function reads
    python tools/model_arguments.py --write    # adds what is new to nki_hf/adapters/model_arguments.py

An argument that some attention function of Transformers reads can change the result; all others end in its `**kwargs`, where
eager ignores them. So the list of what may be ignored is a scan's result, not a judgement. Names of other releases stay.
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import transformers

from nki_hf.adapters.model_arguments import MEANINGFUL, PASSED_ALONG
from nki_hf.adapters.transformers import HONOURED

PAGE = Path(__file__).parents[1] / "nki_hf" / "adapters" / "model_arguments.py"
TENSORS = {"module", "query", "key", "value", "attention_mask"}
"""Parameters of every attention function that are no options."""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    """Every file of Transformers that defines models, generation, their options, or an attention function."""
    root = Path(transformers.__path__[0])
    files = [*root.glob("models/*/modeling_*.py"), *root.glob("integrations/*attention*.py"), *root.glob("generation/*.py")]
    files += [root / "utils" / "generic.py", *root.glob("modeling_*.py")]
    for file in sorted(files):
        yield file, ast.parse(file.read_text())


def names_of(function: ast.FunctionDef) -> set[str]:
    """The names of a function's parameters, without self and the catch-alls."""
    arguments = function.args
    return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} - {"self", "cls"}


def passed(tree: ast.Module) -> set[str]:
    """Names that a caller may give a model, or that a model adds on the way to its attention."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = " ".join(ast.unparse(each) for each in node.bases)
            if "TypedDict" in bases or "Kwargs" in bases:
                found |= {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
            elif "PreTrainedModel" in bases or "GenerationMixin" in bases:
                found |= {name for each in node.body if _is_door(each) for name in names_of(each)}
            elif node.name == "GenerationConfig":
                found |= {
                    each.attr
                    for each in ast.walk(node)
                    if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"
                }
        elif isinstance(node, ast.Call) and any(each.arg is None for each in node.keywords):
            found |= {each.arg for each in node.keywords if each.arg}
        elif isinstance(node, ast.Call) and _reads_kwargs(node):
            found.add(node.args[0].value)
        elif isinstance(node, ast.Subscript) and _is_text(node.slice) and ast.unparse(node.value) in _BAGS:
            found.add(node.slice.value)
    return {name for name in found if not name.startswith("_")}


def _is_door(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name in ("forward", "prepare_inputs_for_generation", "generate")


def read(tree: ast.Module) -> set[str]:
    """Options that an attention function takes by name or looks up in its keyword arguments."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or not {"module", "query", "key", "value"} <= names_of(node):
            continue
        found |= names_of(node) - TENSORS
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and _reads_kwargs(inner):
                found.add(inner.args[0].value)
            elif isinstance(inner, ast.Subscript) and _is_text(inner.slice) and ast.unparse(inner.value) == "kwargs":
                found.add(inner.slice.value)
    return found


def scan() -> tuple[set[str], set[str]]:
    """(what models can pass along, what an attention function reads) in the installed release."""
    everything = [tree for _, tree in trees()]
    return set().union(*map(passed, everything)), set().union(*map(read, everything))


_BAGS = ("kwargs", "model_kwargs", "model_inputs")


def _reads_kwargs(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("get", "pop"):
        return False
    return ast.unparse(call.func.value) in _BAGS and bool(call.args) and _is_text(call.args[0])


def _is_text(node: Any) -> TypeGuard[Any]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def main() -> None:
    """Print or write the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    can_pass, reads = scan()
    harmless = can_pass - reads - TENSORS - set(HONOURED) - MEANINGFUL
    print(
        f"transformers {transformers.__version__}: {len(harmless)} harmless names, {len(harmless - PASSED_ALONG)} of them new"
    )
    print("read by an attention function:", ", ".join(sorted(reads)))
    print(
        "of these neither honoured nor refused:", ", ".join(sorted(reads - set(HONOURED) - MEANINGFUL - PASSED_ALONG)) or "none"
    )
    if options.write:
        head = PAGE.read_text().partition("# begin")[0]
        names = f'frozenset(\n    """\n{_wrapped(sorted(PASSED_ALONG | harmless))}\n    """.split()\n)'
        PAGE.write_text(f"{head}# begin: python tools/model_arguments.py --write\nPASSED_ALONG = {names}\n# end\n")


def _wrapped(names: list[str]) -> str:
    lines: list[str] = []
    line = "       "
    for name in names:
        if len(line) + 1 + len(name) > 120:
            lines.append(line)
            line = "       "
        line += f" {name}"
    return "\n".join([*lines, line])


if __name__ == "__main__":
    main()
