"""The reference cache: a hit only for the same key, nothing half-written, damage named, one computation for two processes."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from nki_hf.tools import output_files
from nki_hf.tools.model_bench.reference_cache import cached_array

KEY = {"model": "m", "dtype": "float32"}


class Compute:
    def __init__(self, array):
        self.array, self.calls = array, 0

    def __call__(self):
        self.calls += 1
        return self.array


@pytest.fixture
def compute(rng):
    return Compute(rng.standard_normal((2, 3, 4)).astype(np.float32))


def _quiet(text):
    raise AssertionError(f"nothing was to be said: {text}")


def test_second_run_reads_what_the_first_computed(tmp_path, compute):
    first = cached_array(tmp_path / "new", KEY, compute, say=_quiet)
    second = cached_array(tmp_path / "new", KEY, compute, say=_quiet)
    assert (first.hit, second.hit, compute.calls) == (False, True, 1)
    assert second.array.dtype == np.float32
    np.testing.assert_array_equal(second.array, compute.array)


def test_any_change_of_the_key_is_another_entry(tmp_path, compute):
    for key in (KEY, {**KEY, "dtype": "float64"}, {**KEY, "seed": 1}):
        assert not cached_array(tmp_path, key, compute, say=_quiet).hit
    assert compute.calls == 3


def test_the_key_is_readable_in_the_file(tmp_path, compute):
    path = cached_array(tmp_path, KEY, compute, say=_quiet).path
    header = json.loads(path.read_bytes().split(b"\n")[1])
    assert json.loads(header["key"]) == KEY


def _damage_flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _damage_cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def _damage_header(path):
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n{not json\n")


def _damage_key(path):
    """One bit of the key's name in the header: what a disk may do."""
    path.write_bytes(path.read_bytes().replace(b'"key"', b'"kex"'))


def _other_header(**changes):
    """A header that says something else, with a checksum that is right: what another program may write."""

    def damage(path):
        magic, header, _, data = path.read_bytes().split(b"\n", 3)
        header = json.dumps({**json.loads(header), **changes} if changes else []).encode()
        checksum = hashlib.sha256(header + b"\n" + data).hexdigest().encode()
        path.write_bytes(b"\n".join((magic, header, checksum, data)))

    return damage


def _damage_place(path):
    other = cached_array(path.parent, {"model": "x"}, lambda: np.zeros(3, np.float32), say=_quiet).path
    other.replace(path)


def _damage_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_damage_flip, "do not match their checksum"),
        (_damage_cut, "do not match their checksum"),
        (_damage_header, "do not match their checksum"),
        (_damage_key, "do not match their checksum"),
        (_damage_place, "belongs to another run"),
        (_other_header(), "header is damaged"),
        (_other_header(key="another"), "belongs to another run"),
        (_other_header(dtype=5), "header is damaged"),
        (_other_header(dtype="object"), "header is damaged"),
        (_other_header(dtype="f4,("), "header is damaged"),
        (_other_header(shape=None), "header is damaged"),
        (_other_header(shape=["2", 3, 4]), "header is damaged"),
        (_other_header(shape=[10**12]), "header is damaged"),
        (_other_header(shape={"a": 1}), "header is damaged"),
        (lambda path: path.write_bytes(b""), "no reference file"),
        (lambda path: path.write_bytes(os.urandom(300)), "no reference file"),
    ],
)
def test_a_damaged_file_is_one_line_and_is_replaced(tmp_path, compute, damage, why):
    path = cached_array(tmp_path, KEY, compute, say=_quiet).path
    damage(path)
    said = []
    again = cached_array(tmp_path, KEY, compute, say=said.append)
    assert (again.hit, compute.calls, len(said)) == (False, 2, 1)
    assert str(path) in said[0]
    assert why in said[0]
    assert cached_array(tmp_path, KEY, compute, say=_quiet).hit


def test_an_unreadable_entry_is_named_and_never_served(tmp_path, compute):
    path = cached_array(tmp_path, KEY, compute, say=_quiet).path
    path.unlink()
    path.mkdir()
    said = []
    with pytest.raises(OSError, match=r"is a folder: remove it, or choose another --cache-dir"):
        cached_array(tmp_path, KEY, compute, say=said.append)
    assert len(said) == 1


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path, compute):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"the cache folder .*file cannot be made \(File exists\): choose another --cache-dir"):
        cached_array(tmp_path / "file", KEY, compute, say=_quiet)


def _interrupt(*_):
    raise KeyboardInterrupt


def test_an_interrupt_while_computing_leaves_no_entry(tmp_path, compute):
    with pytest.raises(KeyboardInterrupt):
        cached_array(tmp_path, KEY, _interrupt, say=_quiet)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert not cached_array(tmp_path, KEY, compute, say=_quiet).hit


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_an_interrupt_while_writing_leaves_no_entry(tmp_path, compute, monkeypatch, moment):
    monkeypatch.setattr(output_files.os, moment, _interrupt)
    with pytest.raises(KeyboardInterrupt):
        cached_array(tmp_path, KEY, compute, say=_quiet)
    monkeypatch.undo()
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert not cached_array(tmp_path, KEY, compute, say=_quiet).hit


def _slow_process(folder, results):
    def compute():
        time.sleep(0.5)
        with open(folder / "computed.log", "a") as log:
            log.write("once\n")
        return np.arange(6.0)

    found = cached_array(folder, KEY, compute, say=_quiet)
    results.put((found.hit, found.array.sum()))


def test_two_processes_with_one_folder_compute_once(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [spawn.Process(target=_slow_process, args=(tmp_path, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    assert found == [(False, 15.0), (True, 15.0)]
    assert (tmp_path / "computed.log").read_text() == "once\n"


@pytest.mark.parametrize("bit", range(0, 8 * 200, 37))
def test_any_flipped_bit_of_the_head_is_seen(tmp_path, compute, bit):
    path = cached_array(tmp_path, KEY, compute, say=_quiet).path
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    said = []
    again = cached_array(tmp_path, KEY, compute, say=said.append)
    assert (again.hit, len(said)) == (False, 1)
    np.testing.assert_array_equal(again.array, compute.array)


def test_a_pipe_in_the_place_of_an_entry_is_not_waited_for(tmp_path, compute):
    path = cached_array(tmp_path, KEY, compute, say=_quiet).path
    _damage_pipe(path)
    said = []
    with pytest.raises(OSError, match="remove it, or choose another --cache-dir"):
        cached_array(tmp_path, KEY, compute, say=said.append)
    assert "it is no file" in said[0]


def test_a_good_entry_is_read_where_nothing_can_be_written(tmp_path, compute, monkeypatch):
    """As in a read-only folder; the tests may run as root, who may write anywhere."""
    path = cached_array(tmp_path, KEY, compute, say=_quiet).path
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("nki_hf.tools.model_bench.reference_cache.FileLock", refused)
    monkeypatch.setattr(output_files.os, "open", refused)
    assert cached_array(tmp_path, KEY, compute, say=_quiet).hit
    with pytest.raises(OSError, match=r"cannot be written \(Permission denied\): choose another --cache-dir"):
        cached_array(tmp_path, {"model": "other"}, compute, say=_quiet)


_KILLED = """
import sys, time, numpy as np
from pathlib import Path
from nki_hf.tools import output_files
from nki_hf.tools.model_bench.reference_cache import cached_array
output_files.os.fsync = lambda number: (print("writing", flush=True), time.sleep(60))
cached_array(Path(sys.argv[1]), {"model": sys.argv[2]}, lambda: np.zeros(1000, np.float32), say=print)
"""


def _writer(folder, model):
    process = subprocess.Popen([sys.executable, "-c", _KILLED, folder, model], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    return process


def test_what_killed_processes_left_is_removed_and_what_is_being_written_stays(tmp_path, compute):
    killed, alive = _writer(tmp_path, "killed"), _writer(tmp_path, "alive")
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=60)
    (tmp_path / ".writing-not_ours_at_all").write_text("")
    assert len(list(tmp_path.glob(".writing-????????"))) == 2
    try:
        assert not cached_array(tmp_path, KEY, compute, say=_quiet).hit
        assert len(list(tmp_path.glob(".writing-????????"))) == 1
    finally:
        alive.send_signal(signal.SIGKILL)
        alive.wait(timeout=60)
    assert cached_array(tmp_path, KEY, compute, say=_quiet).hit
    assert [path.name for path in tmp_path.glob(".writing-*")] == [".writing-not_ours_at_all"]
