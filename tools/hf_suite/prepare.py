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


class Refused(Exception):
    """One line: what is wrong and what to do."""


def main() -> int:
    """Write the folder; 2 if the checkout or the source distribution is not one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sdist", type=Path)
    options = parser.parse_args()
    try:
        print(prepare(options.checkout, options.folder, options.sdist))
    except Refused as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(checkout: Path, folder: Path, sdist: Path | None) -> str:
    """Fill the folder; what is in it. COMMIT is written last: a folder without it is not complete."""
    if not checkout.is_dir():
        raise Refused(f"checkout {checkout} is not a folder. Clone github.com/huggingface/transformers and give its path.")
    commit = _git(checkout, "rev-parse", "--verify", "HEAD").decode().strip()
    archive = _git(checkout, "archive", "HEAD", *_PATHS)
    defaults = _git(checkout, "show", f"HEAD:{_DEFAULTS}")
    laid_over = _top_level_tests(sdist) if sdist else {}
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    # the library's constants for its testers, which the installed version may lack; swap.py reads them from here
    (folder / "checkout_testing_utils.py").write_bytes(defaults)
    for name, content in laid_over.items():
        (folder / "tests" / name).write_bytes(content)
    stub = folder / "tests" / "distributed_testing_utils.py"
    if not stub.exists():
        stub.write_text(_STUB)
    (folder / "COMMIT").write_text(f"{commit}\n{sdist.name if sdist else ''}\n")
    return f"{folder}: tests of {commit[:10]}" + (f", {sdist.name} laid over" if sdist else "")


def _top_level_tests(sdist: Path) -> dict[str, bytes]:
    """Name and content of the files directly in tests/."""
    if not sdist.is_file() or not tarfile.is_tarfile(sdist):
        raise Refused(
            f"--sdist {sdist} is not a tar file. `pip download transformers==X.Y.Z --no-deps --no-binary :all:` makes one."
        )
    with tarfile.open(sdist) as tar:
        members = [(member, Path(member.name).parts[1:]) for member in tar.getmembers() if member.isfile()]
        found = {
            parts[1]: tar.extractfile(member).read() for member, parts in members if len(parts) == 2 and parts[0] == "tests"
        }
    if not found:
        raise Refused(f"--sdist {sdist} has no tests/*.py: it is not a source distribution of transformers.")
    return found


def _git(checkout: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, check=False)
    if done.returncode:
        problem = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise Refused(f"{checkout} is not a checkout of transformers: git {arguments[0]} says {problem[-1]!r}.")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
