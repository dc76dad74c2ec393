"""A stand-in for the package `kernels` of the version that the newest Transformers asks for and that no index has yet.

It has the names that Transformers imports, and of its loader what LOCAL_KERNELS is documented to do: "name=folder" entries,
joined by colons, say where a kernel lies; the folder is a build, with metadata.json and __init__.py, which is imported from its
path. Everything else is refused.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

from kernels.layer.mode import Mode


def get_kernel(
    repo_id, *, revision=None, version=None, backend=None, user_agent=None, trust_remote_code=False, check_arch=True
):
    """The module of a local kernel."""
    if (revision is None) == (version is None):
        raise ValueError("either a revision or a version must be given")
    folders = {}
    for entry in os.environ.get("LOCAL_KERNELS", "=").split(":"):
        name, equals, folder = entry.partition("=")
        if not equals:
            raise ValueError(f"Invalid LOCAL_KERNELS entry: {entry}")
        folders[name] = folder  # of entries for one name the last counts
    if repo_id in folders:
        return _loaded(Path(folders[repo_id]))
    raise FileNotFoundError(f"{repo_id}: this stand-in downloads nothing")


def _loaded(folder):
    metadata = json.loads((folder / "metadata.json").read_text())
    for key in ("name", "id", "version", "license", "python-depends", "backend"):
        if key not in metadata:
            raise ValueError(f"metadata.json has no {key}")
    if metadata["id"] not in sys.modules:
        spec = importlib.util.spec_from_file_location(metadata["id"], folder / "__init__.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[metadata["id"]] = module
        spec.loader.exec_module(module)
    return sys.modules[metadata["id"]]


def _unused(name):
    def refuse(*_, **__):
        raise NotImplementedError(f"kernels.{name} is not part of this stand-in")

    return refuse


class _Repository:
    def __init__(self, *_, **__):
        raise NotImplementedError("layers are not part of this stand-in")


CUDAProperties = Device = KernelizeFallback = LayerRepository = LocalLayerRepository = ROCMProperties = _Repository
FuncRepository = _Repository
register_kernel_mapping, replace_kernel_forward_from_hub = _unused("register_kernel_mapping"), _unused("replace")
use_kernel_mapping, kernelize = _unused("use_kernel_mapping"), _unused("kernelize")


def use_kernel_forward_from_hub(_):
    """A decorator that changes nothing."""
    return lambda cls: cls


def use_kernelized_func(*_):
    """A decorator that changes nothing."""
    return lambda cls: cls


__all__ = ["Mode", "get_kernel"]
