"""examples/serve.py: its server ends with it however it ends, what it calls a pass, and runs with clients that misbehave."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
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
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a suite under nohup hands on that it is ignored
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
        [sys.executable, *words],
        cwd=ROOT,
        env={**_environ(STAND_IN), "COLUMNS": "400", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    for name in ("sdpa", "nki-hf/flash-attention"):
        assert f"{name}: 3 clients left in the middle" in done.stdout
        assert f"{name}: 3 of 3 client processes were killed in the middle" in done.stdout
        assert f"{name}: a request of 1,500 words got 100 tokens" in done.stdout
        assert f"{name}: 12 of 12 requests beyond the whole cache were refused with the reason" in done.stdout
        assert f"{name}: a crowd of 40 got 80 tokens" in done.stdout
        assert f"{name}: of 8 requests to a full queue 1 were refused" in done.stdout


@pytest.mark.slow  # an import of Transformers in a server
@pytest.mark.timeout(300)
def test_the_server_of_the_page_refuses_before_a_stream_begins_and_ends_with_an_interrupt(tmp_path):
    _needs_a_server()
    serve.small_model(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = f"-m nki_hf.serve {tmp_path} --continuous-batching --attn-implementation sdpa --device cpu --dtype float32".split()
    words += f"--host 127.0.0.1 --port {port} --cb-block-size 16 --cb-num-blocks 16 --cb-max-batch-tokens 64".split()

    def ask(path, **body):
        body = json.dumps({"model": str(tmp_path), "temperature": 0, **body}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    text = " ".join(serve.words_of_text()[:300])
    environ = {**_environ(), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ) as server:
        try:
            for line in server.stdout:
                if b"Uvicorn running" in line:
                    break
            threading.Thread(target=server.stdout.read, daemon=True).start()
            for stream in (False, True):  # the first request of all among them
                for path, more in (
                    ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 4}),
                    ("/v1/completions", {"prompt": text, "max_tokens": 4}),
                    ("/v1/completions", {"prompt": "the rabbit"}),
                    ("/v1/completions", {"prompt": "", "max_tokens": 4}),
                    ("/v1/responses", {"input": text}),
                ):
                    status, told = ask(path, stream=stream, **more)
                    assert status == 400, told
                    assert "257 tokens together" in told or "no tokens" in told
            assert ask("/v1/completions", prompt=" ".join(text.split()[:253]), max_tokens=4)[0] == 200
            assert ask("/v1/completions", prompt=" ".join(text.split()[:254]), max_tokens=4)[0] == 400
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).status == 200
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 130
        finally:
            server.kill()
