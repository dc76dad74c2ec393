"""Every test file stands in the room of the part of the package that it tests."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS, PACKAGE = ROOT / "tests", ROOT / "nki_hf"
ROOMS = {"adapters", "backends", "kernels", "observers", "sim", "timing", "tools", "project"}
"""One room per folder of the package that has tests; `project` for what is about the repository as a whole."""
SHARED = {"support", "fakes"}


def outside_a_room(folder):
    """Test files and modules of `folder` that stand in no room, and folders that are neither a room nor shared."""
    files = {path.name for path in folder.glob("*.py")} - {"conftest.py"}
    folders = {path.parent.relative_to(folder).parts[0] for path in folder.glob("*/*.py")} - ROOMS - SHARED
    lost = {str(path.relative_to(folder)) for path in folder.glob("support/**/test_*.py")}
    return sorted(files | folders | lost)


def test_every_test_file_stands_in_a_room():
    assert outside_a_room(TESTS) == []


def test_the_rooms_mirror_the_package():
    assert {room for room in ROOMS - {"project"} if not (PACKAGE / room / "__init__.py").exists()} == set()


@pytest.mark.parametrize("path", ["test_new.py", "helper.py", "new_room/test_new.py", "support/test_new.py"])
def test_a_file_outside_the_rooms_is_found(tmp_path, path):
    for room in ("sim", "support", "fakes"):
        (tmp_path / room).mkdir()
    (tmp_path / "conftest.py").touch()
    (tmp_path / "sim" / "test_held.py").touch()
    (tmp_path / "support" / "cases.py").touch()
    assert outside_a_room(tmp_path) == []
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).touch()
    assert outside_a_room(tmp_path) == [path.removesuffix("/test_new.py") if path.startswith("new_room") else path]


def test_no_two_test_files_share_a_name():
    names = [path.name for path in TESTS.rglob("test_*.py")]  # pytest imports them by their name
    assert len(names) == len(set(names))
