"""Processes killed in the middle of a write, disks that are full, files with a damaged byte, readers that leave."""

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from nki_hf.tools import output_files
from nki_hf.tools.model_bench import reference_cache
from nki_hf.tools.model_bench.reference_cache import cached_array
from nki_hf.tools.output_files import whole_file

OLD, NEW = b"old " * 1000, b"new " * 2000
KEY = {"model": "tiny", "seqlen": 3}


def _quiet(line):
    pass


def _files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


# ---- killed in a write --------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from nki_hf.tools import output_files as files
left = int(sys.argv[2])
def at(function):
    def called(*given, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*given, **options)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return called
for name in ("open", "fdopen", "fsync", "chmod", "replace"):
    setattr(files.os, name, at(getattr(os, name)))
with files.whole_file(Path(sys.argv[1])) as file:
    for part in range(2):
        at(file.write)(b"new " * 1000)
        file.flush()
"""
_CALLS = 14
"""Calls of the system that a write makes here, counted twice: before and after."""


def _killed_at(moment, path):
    done = subprocess.run([sys.executable, "-c", KILLED, path, str(moment)], timeout=120, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.mark.parametrize("moment", [2, 6, 9, pytest.param(None, marks=pytest.mark.slow)])
def test_a_killed_write_leaves_the_old_file_or_the_new_one_and_no_litter(tmp_path, moment):
    path, killed = tmp_path / "out.json", 0
    for at in range(1, 20) if moment is None else [moment]:
        path.write_bytes(OLD)
        killed += _killed_at(at, path)
        assert path.read_bytes() in (OLD, NEW), at
        with whole_file(path) as file:
            file.write(OLD)
        assert _files(tmp_path) == ["out.json"], at
    assert killed == (_CALLS if moment is None else 1)


# ---- a full disk --------------------------------------------------------------------------------------------------------


class _Full:
    """A file of which the disk takes so many bytes; flushing or syncing it may fail instead."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def __enter__(self):
        return self

    def __exit__(self, *rest):
        self.file.close()

    def write(self, data):
        size = memoryview(data).nbytes
        if size > self.room:
            self.file.write(memoryview(data).cast("B")[: self.room])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= size
        return self.file.write(data)

    def flush(self):
        self.file.flush()


def _full(*given, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_disk_that_is_full_at_any_call_leaves_what_was_there(tmp_path, monkeypatch, call):
    path = tmp_path / "out.json"
    path.write_bytes(OLD)
    monkeypatch.setattr(output_files.os, call, _full)
    with pytest.raises(OSError, match="No space left"), whole_file(path) as file:
        file.write(NEW)
    monkeypatch.undo()
    assert (path.read_bytes(), _files(tmp_path)) == (OLD, ["out.json"])


@pytest.mark.parametrize("room", [0, 1, 25, 26, 100, 150, 200, 250, 290])
def test_a_disk_that_is_full_after_any_byte_leaves_no_entry_and_the_next_run_is_right(tmp_path, monkeypatch, room):
    real = os.fdopen
    array = np.arange(40.0)
    monkeypatch.setattr(output_files.os, "fdopen", lambda *given, **options: _Full(real(*given, **options), room))
    with pytest.raises(OSError, match="No space left"):
        cached_array(tmp_path, KEY, lambda: array, say=_quiet)
    monkeypatch.undo()
    assert _files(tmp_path) == []
    again = cached_array(tmp_path, KEY, lambda: array, say=_quiet)
    assert not again.hit
    np.testing.assert_array_equal(cached_array(tmp_path, KEY, lambda: array, say=_quiet).array, array)


# ---- a damaged byte -----------------------------------------------------------------------------------------------------


def _never_served_damaged(path, places, bits):
    """Each place with each bit flipped: the file must be refused, with a reason."""
    whole, text = path.read_bytes(), reference_cache.json.dumps(KEY, sort_keys=True)
    with path.open("r+b") as file:
        for place in places:
            for bit in bits:
                file.seek(place)
                file.write(bytes([whole[place] ^ 1 << bit]))
                file.flush()
                found, why = reference_cache._kept(path, text)
                assert found is None, (place, bit)
                assert why, (place, bit)
            file.seek(place)
            file.write(whole[place : place + 1])
            file.flush()
    assert reference_cache._kept(path, text)[0] is not None
    return len(places) * len(bits)


def test_any_flipped_bit_of_a_small_reference_file_is_seen(tmp_path):
    path = cached_array(tmp_path, KEY, lambda: np.arange(4.0), say=_quiet).path
    size = path.stat().st_size
    assert _never_served_damaged(path, range(size), range(8)) == 8 * size > 1600


def test_any_length_of_a_small_reference_file_is_seen(tmp_path):
    path = cached_array(tmp_path, KEY, lambda: np.arange(4.0), say=_quiet).path
    whole, text = path.read_bytes(), reference_cache.json.dumps(KEY, sort_keys=True)
    for length in [*range(len(whole)), len(whole) + 1, 2 * len(whole)]:
        path.write_bytes((whole + whole)[:length])
        found, why = reference_cache._kept(path, text)
        assert found is None, length
        assert why, length


@pytest.mark.slow
def test_any_flipped_byte_of_a_reference_file_of_64_kib_is_seen(tmp_path):
    path = cached_array(tmp_path, KEY, lambda: np.random.default_rng(0).standard_normal(8150), say=_quiet).path
    size = path.stat().st_size
    assert 65_000 < size <= 1 << 16
    _never_served_damaged(path, range(size), [3])


@pytest.mark.slow
def test_a_thousand_flipped_bytes_of_a_large_reference_file_are_seen(tmp_path):
    rng = np.random.default_rng(0)
    path = cached_array(tmp_path, KEY, lambda: rng.standard_normal(1 << 16), say=_quiet).path
    _never_served_damaged(path, [*range(300), *rng.integers(300, path.stat().st_size, 1000).tolist()], [5])


# ---- standard streams ---------------------------------------------------------------------------------------------------

COMMANDS = {
    "chip": "chip trn2",
    "env": "env",
    "lint": "lint nothere.py",
    "bench": "bench --shape sq=128,skv=128 --chip trn2",
    "report": "report --shape sq=128,skv=128",
    "explain": "explain --model nothere",
    "help": "--help",
}


@pytest.mark.parametrize("name", ["chip", *(pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS if name != "chip")])
@pytest.mark.parametrize("how", ["| head -1", "| true", ">&-", "2>&-", "<&-", ">/dev/full", ">&- 2>&- <&-"])
def test_no_command_traces_back_whatever_becomes_of_its_streams(name, how):
    line = f'"{sys.executable}" -m nki_hf {COMMANDS[name]} {how}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=200)
    assert "Traceback" not in done.stderr + done.stdout
    assert "Exception ignored" not in done.stderr
    assert done.returncode in (0, 1, 2)
    if how == ">/dev/full" and name != "lint" and name != "explain":
        assert (done.returncode, done.stderr) == (2, "output cannot be written (No space left on device).\n")
