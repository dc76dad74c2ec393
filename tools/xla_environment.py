"""A venv with the real torch 2.9 and torch_xla 2.9, whose CPU device stands for `xla`.

tests/backends/test_real_xla.py runs in it:

    python3.11 tools/xla_environment.py            # makes .venv-xla; about 1 GB to download, 2.5 GB on disk
    PJRT_DEVICE=CPU .venv-xla/bin/python ...       # after it

On x86-64 the public index has torch 2.9 as a CUDA build only, whose libraries from NVIDIA would be 3 GB more and are of no use
here. They are left out: a library without code, made with the system's C compiler, takes their names and says of every call
that there is no such device. Needs Linux on x86-64, gcc and binutils.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".venv-xla"
ALONE = ("torch==2.9.1", "torch_xla==2.9.0")
"""Installed without what they require."""
NEEDED = (
    "numpy>=2,<2.4", "filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "absl-py", "pyyaml", "requests",
    "ml-dtypes", "typer", "rich", "pydantic", "platformdirs", "wrapt", "transformers>=4.57", "pytest",
)  # fmt: skip
_OF_NVIDIA = re.compile(r"lib(cu|nccl|nv)")
_NO_DEVICE = 100
"""cudaErrorNoDevice."""


def main() -> None:
    """Make the environment, or say which step failed."""
    if not (FOLDER / "bin" / "python").exists():
        venv.create(FOLDER, with_pip=True)
    pip = [FOLDER / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", *ALONE], check=True)
    subprocess.run([*pip, *NEEDED], check=True)
    (torch,) = FOLDER.glob("lib/python3*/site-packages/torch")
    without_code(torch / "lib")
    code = "import torch_xla; print(torch_xla.__version__, torch_xla.device())"
    environ = {"PJRT_DEVICE": "CPU", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([FOLDER / "bin" / "python", "-c", code], env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"torch_xla does not start in {FOLDER}: {done.stderr.strip().splitlines()[-1]}")
    print(f"{FOLDER} is ready: torch_xla {done.stdout.strip()}")


def without_code(folder: Path) -> None:
    """Put one library with every missing name of NVIDIA's beside torch's own, where its loader looks first."""
    needed, wanted, defined = set(), {}, set()
    for library in folder.glob("*.so"):
        if library.name == "absent.so":
            continue
        needed |= set(re.findall(r"NEEDED.*\[(.*?)\]", _output("readelf", "-dW", library)))
        for line in _output("nm", "-D", "--with-symbol-versions", library).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.partition("@")
            if kind in "Uw":
                wanted[name] = version.lstrip("@")
            else:
                defined.add(name)
    present = {path.name for path in folder.iterdir() if not path.is_symlink()}
    missing = sorted(name for name in needed - present if _OF_NVIDIA.match(name))
    versions = collections.defaultdict(list)
    for name, version in wanted.items():
        plain = not version and re.match(r"cu|nv|nccl", name)
        if name not in defined and (plain or version == "NVSHMEM" or _OF_NVIDIA.match(version)):
            versions[version].append(name)
    source = "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for names in versions.values() for name in names)
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in names)} }};\n" for version, names in versions.items() if version
    )
    (folder / "absent.c").write_text(source)
    (folder / "absent.map").write_text(script)
    flags = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,--version-script={folder / 'absent.map'}"]
    subprocess.run(["gcc", *flags, folder / "absent.c", "-o", folder / "absent.so"], check=True)
    for name in missing:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("absent.so")


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
