"""Two halves of some work in two processes: both answers, whatever becomes of the copy."""

import os
import signal

import pytest

from nki_hf.sim.beside import in_two, two_processes

MINE = os.getpid()


def other_process() -> bytes:
    return str(os.getpid()).encode()


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    with two_processes():
        yield


def test_the_other_half_is_done_by_a_copy_where_that_is_allowed_and_here_elsewhere(two):
    mine, other = in_two(os.getpid, other_process)
    assert mine == MINE != int(other)
    with two_processes(False):
        assert in_two(os.getpid, other_process) == (MINE, str(MINE).encode())


def test_a_copy_does_not_fork_again(two):
    def nested() -> bytes:
        return in_two(other_process, other_process)[1]

    _, other = in_two(nested, lambda: b" ".join(in_two(other_process, other_process)))
    assert len(set(other.split())) == 1


def test_an_answer_longer_than_a_pipe_holds_comes_whole(two):
    answer = os.urandom(1 << 20)
    assert in_two(lambda: None, lambda: answer) == (None, answer)


def _ends_itself() -> bytes:
    if os.getpid() != MINE:
        os.kill(os.getpid(), signal.SIGKILL)
    return b"done here"


def _ends_in_its_answer() -> bytes:
    if os.getpid() == MINE:
        return b"done here"
    write = os.write

    def half(pipe, data):
        write(pipe, bytes(data)[:11])
        os.kill(os.getpid(), signal.SIGKILL)

    os.write = half
    return b"not all of this"


@pytest.mark.parametrize("other", [_ends_itself, _ends_in_its_answer])
def test_what_a_copy_leaves_undone_is_done_here(two, other):
    assert in_two(os.getpid, other) == (MINE, b"done here")


def test_what_a_half_raises_is_raised_here_and_no_copy_is_left(two, monkeypatch):
    copies, fork = [], os.fork

    def counted():
        copies.append(fork())
        return copies[-1]

    monkeypatch.setattr(os, "fork", counted)

    def wrong() -> bytes:
        raise LookupError(f"raised in {os.getpid()}")

    with pytest.raises(LookupError, match=str(MINE)):
        in_two(os.getpid, wrong)
    with pytest.raises(LookupError, match=str(MINE)):
        in_two(wrong, lambda: bytes(1 << 20))
    assert len(copies) == 2
    for copy in copies:
        with pytest.raises(ChildProcessError):
            os.waitpid(copy, os.WNOHANG)


def test_a_copy_says_nothing(two, capfd):
    def loud() -> bytes:
        print("loud", flush=True)
        return b"said"

    assert in_two(lambda: None, loud) == (None, b"said")
    assert capfd.readouterr().out == ""
