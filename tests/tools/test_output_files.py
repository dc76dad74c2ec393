"""Output files: complete or absent; links followed, modes kept; devices, pipes and standard output written as streams."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from nki_hf.tools.output_files import check_writable, whole_file


def _write(path, text=b"new\n"):
    check_writable(path)
    with whole_file(path) as file:
        file.write(text)


def _mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def test_a_new_file_has_the_mode_of_the_umask(tmp_path, umask):
    _write(tmp_path / "new")
    assert _mode(tmp_path / "new") == 0o666 & ~umask


def test_a_replaced_file_keeps_its_mode(tmp_path):
    path = tmp_path / "old"
    path.write_text("old")
    path.chmod(0o600)
    _write(path)
    assert (path.read_bytes(), _mode(path)) == (b"new\n", 0o600)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_a_link_and_its_target_is_written(tmp_path, exists):
    target, link = tmp_path / "target", tmp_path / "link"
    if exists:
        target.write_text("old")
    link.symlink_to(target)
    _write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new\n"


def test_a_pipe_stays_a_pipe_and_its_reader_gets_the_text(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    while not got:
        try:
            with whole_file(path) as file:
                file.write(b"x" * 200_000)  # more than a pipe holds
        except OSError:
            continue  # the reader is not there yet
        reader.join(timeout=60)
    assert got == [b"x" * 200_000]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_pipe_without_a_reader_is_an_error_and_not_waited_for(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    check_writable(path)
    with pytest.raises(OSError, match="nobody reads this pipe"), whole_file(path):
        pass
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_stays_a_device():
    before = os.stat(os.devnull)
    _write(os.devnull)
    assert os.path.samestat(before, os.stat(os.devnull))
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_device_behind_a_link_stays_a_device(tmp_path):
    (tmp_path / "link").symlink_to(os.devnull)
    _write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


_PRINTED = """
from pathlib import Path
from nki_hf.tools.output_files import check_writable, whole_file
print("before")
check_writable(Path("/dev/stdout"))
with whole_file(Path("/dev/stdout")) as file:
    file.write(b"result\\n")
print("after")
"""


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_standard_output_is_written_in_order(tmp_path, kind):
    path = tmp_path / "out"
    with path.open("wb") as file:
        done = subprocess.run([sys.executable, "-c", _PRINTED], stdout=subprocess.PIPE if kind == "pipe" else file, check=True)
    assert (done.stdout if kind == "pipe" else path.read_bytes()) == b"before\nresult\nafter\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("exists", [True, False])
def test_an_error_while_writing_leaves_what_was_there(tmp_path, exists):
    path = tmp_path / "file"
    if exists:
        path.write_text("old")

    def interrupted():
        with whole_file(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["old"] * exists


@pytest.mark.parametrize("name", ["x" * 300, "folder", "loop", "file/below"])
def test_what_cannot_be_written_is_a_sentence_before_the_work(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match=r"^output=.* cannot be written \(.*\): give a file"):
        check_writable(tmp_path / name)
