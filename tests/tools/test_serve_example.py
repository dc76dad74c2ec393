"""examples/serve.py: its server ends with it however it ends, what it calls a pass, and runs with clients that misbehave."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import serve  # noqa: E402
from http_serving.clients import threads  # noqa: E402

HOLD = """
import signal, sys, time
from pathlib import Path
from http_serving.server import running
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with running("sdpa", Path(sys.argv[1])) as server:
    print(server.process.pid, flush=True)
    time.sleep(float(sys.argv[2]))
print(server.attention, flush=True)
"""


def _environ(*paths):
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT, ROOT / "examples"))), "OMP_NUM_THREADS": "1"}


def _hold(model, seconds):
    """A program that holds a server of a stand-in command for some seconds."""
    words = [sys.executable, "-c", HOLD, model, str(seconds)]
    environ = _environ(ROOT / "tests" / "fakes" / "serve_command")
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def _gone(pid, seconds=10):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        # Without a parent it is init's to reap, which a container's may not do.
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


@pytest.mark.parametrize("how", ["end", "SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_server_ends_with_the_program_that_started_it(how):
    with _hold("model", 0 if how == "end" else 60) as program:
        pid = int(program.stdout.readline())
        if how != "end":
            program.send_signal(getattr(signal, how))
        out, err = program.communicate(timeout=30)
    assert _gone(pid)
    if how == "end":
        assert "'calls': 0" in out, err


@pytest.mark.parametrize(("model", "told"), [("fails", "no such model"), ("ends", "without a report")])
def test_a_server_that_ends_by_itself_is_an_error_with_its_log(model, told):
    with _hold(model, 1) as program:
        out, err = program.communicate(timeout=30)
    assert program.returncode == 1
    assert "the server ended" in err
    assert told in err
    assert "calls" not in out


def test_an_interrupt_does_not_wait_for_requests_that_are_under_way():
    waiting = threading.Event()
    began = time.monotonic()

    def interrupted():
        with threads(2) as pool:
            for _ in range(4):
                pool.submit(waiting.wait, 20)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 10
    waiting.set()


def _outcome(texts, calls, fallbacks=0, **more):
    kernels = {"flash_prefill": calls} if calls else {}
    attention = {"calls": calls, "fallbacks": fallbacks, "kernels": kernels, "text": "the table"}
    return serve.Outcome(texts=texts, seconds=[0.1] * len(texts), took=1.0, tokens=8, attention=attention, **more)


VERDICTS = {
    "equal": (_outcome(["a", "b"], 0), _outcome(["a", "b"], 5), "PASS"),
    "a text differs": (_outcome(["a", "b"], 0), _outcome(["a", "c"], 5), "1 texts differ"),
    "the reference ran kernels": (_outcome(["a"], 3), _outcome(["a"], 5), "no reference"),
    "no kernel ran": (_outcome(["a"], 0), _outcome(["a"], 0), "of 0 attention calls 0 ran torch"),
    "torch ran": (_outcome(["a"], 0), _outcome(["a"], 5, 2), "of 5 attention calls 2 ran torch"),
    "a disturbance did": (_outcome(["a"], 0), _outcome(["a"], 5, good=False), "disturbance"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_what_passes(case, capsys):
    reference, found, told = VERDICTS[case]
    assert serve.report({"sdpa": reference, "nki-hf/flash-attention": found}) == (told == "PASS")
    assert told in " ".join(capsys.readouterr().out.split())


# ---- with Transformers' own server ----------------------------------------------------------------------------------


def _needs_a_server():
    for package in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(package, reason=f"{package} is not installed, which `transformers serve` needs")


STAND_IN = ROOT / "tests" / "fakes" / "kernels_loader"


@pytest.mark.slow  # four imports of Transformers, and a queue whose places are waited for, twice 12 s
@pytest.mark.timeout(600)
def test_clients_that_misbehave_change_no_answer_of_a_server():
    _needs_a_server()
    words = ["examples/serve.py", "--disturb", "--requests", "12", "--clients", "6", "--words", "120", "--new-tokens", "6"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**_environ(STAND_IN), "COLUMNS": "400", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    for name in ("sdpa", "nki-hf/flash-attention"):
        assert f"{name}: 3 clients left in the middle" in done.stdout
        assert f"{name}: 3 of 3 client processes were killed in the middle" in done.stdout
        assert f"{name}: a request of 1,500 words got 100 tokens" in done.stdout
        assert f"{name}: a crowd of 40 got 80 tokens" in done.stdout
        assert f"{name}: of 8 requests to a full queue 1 were refused" in done.stdout


@pytest.mark.slow  # an import of Transformers in a server
@pytest.mark.timeout(300)
def test_what_does_not_fit_the_whole_cache_ends_transformers_own_worker_as_the_page_says(tmp_path):
    _needs_a_server()
    source = f"""
import urllib.error, urllib.request
from pathlib import Path
import serve
from http_serving.clients import ask, words_of_text
from http_serving.server import BLOCK, BLOCKS, running
with running("sdpa", serve.small_model(Path({str(tmp_path)!r}))) as server:
    text = words_of_text()
    assert ask(server, "the rabbit", 2)[1] == 2
    try:
        ask(server, " ".join((text * 9)[: BLOCK * BLOCKS + 100]), 4)
    except urllib.error.HTTPError as error:
        print("refused", error.code)
    try:
        urllib.request.urlopen(server.address + "/health", timeout=10)
    except urllib.error.HTTPError as error:
        print("health", error.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", source], env={**_environ(STAND_IN), "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True
    )
    assert done.stdout.split() == ["refused", "503", "health", "503"], (done.stdout, done.stderr)
