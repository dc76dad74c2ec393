"""Makes a folder in which Transformers' own model tests run against the installed package.

python tools/hf_suite/prepare.py CHECKOUT FOLDER [--sdist transformers-X.Y.Z.tar.gz]

CHECKOUT is a clone of the transformers repository, bare or not. Its tests are copied at HEAD; nothing is downloaded. A
checkout that is not of the installed version still works in most places when the top-level test files of that version's source
distribution are laid over it (`--sdist`). The folder is the user's: none of its contents belong to this project.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
from pathlib import Path

_PATHS = ("conftest.py", "pyproject.toml", "tests", "utils")
_DEFAULTS = "src/transformers/testing_utils.py"
_STUB = '''"""Stands for helpers of distributed tests, which do not run here."""


def __getattr__(name):
    def refuse(*_, **__):
        raise RuntimeError(f"{name} needs the distributed test helpers.")

    return refuse
'''


def main() -> int:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sdist", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    archive = _git(options.checkout, "archive", "HEAD", *_PATHS)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(options.folder, filter="data")
    # the library's constants for its testers, which the installed version may lack; swap.py reads them from here
    (options.folder / "checkout_testing_utils.py").write_bytes(_git(options.checkout, "show", f"HEAD:{_DEFAULTS}"))
    if options.sdist:
        with tarfile.open(options.sdist) as tar:
            for member in tar.getmembers():
                parts = Path(member.name).parts[1:]
                if member.isfile() and len(parts) == 2 and parts[0] == "tests":
                    (options.folder / Path(*parts)).write_bytes(tar.extractfile(member).read())
    stub = options.folder / "tests" / "distributed_testing_utils.py"
    if not stub.exists():
        stub.write_text(_STUB)
    commit = _git(options.checkout, "rev-parse", "HEAD").decode().strip()
    (options.folder / "COMMIT").write_text(commit + "\n")
    print(f"{options.folder}: tests of {commit[:10]}" + (f", {options.sdist.name} laid over" if options.sdist else ""))
    return 0


def _git(checkout: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(checkout), *arguments], check=True, stdout=subprocess.PIPE).stdout


if __name__ == "__main__":
    sys.exit(main())
