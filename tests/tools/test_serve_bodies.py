"""`python -m nki_hf.serve` with bodies, headers and connections that nobody meant: each is answered or closed, none ends the
server, and the answer to a good request stays what it was.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))
CHAT, TEXTS, ANSWERS = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GOOD = {"messages": [{"role": "user", "content": "the rabbit went down"}], "max_tokens": 4, "temperature": 0}
VALUES = (
    None, True, -1, 0, 1e300, 10**40, "", "x" * 5000, "é\x00✓", [], {}, [[]], ["a"] * 300, {"a": {"b": []}}, "NaN", -0.5, "4",
)  # fmt: skip
COMMON = ("temperature", "top_p", "stream", "model", "seed", "generation_config", "nonsense")
FIELDS = {
    CHAT: (*COMMON, "messages", "max_tokens", "stop", "frequency_penalty", "logit_bias", "tools", "max_completion_tokens"),
    TEXTS: (*COMMON, "prompt", "max_tokens", "stop", "n", "frequency_penalty", "suffix"),
    ANSWERS: (*COMMON, "input", "max_output_tokens", "instructions", "metadata"),
}
BASES = {
    CHAT: GOOD,
    TEXTS: {"prompt": "the rabbit", "max_tokens": 4, "temperature": 0},
    ANSWERS: {"input": "the rabbit", "max_output_tokens": 4, "temperature": 0},
}
"""What each path takes, and a request of it that is good."""
BODIES = (
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe\x00",
    b'{"messages": [',
    b'{"a": NaN}',
    b"[" * 5000,
    b'"' + b"x" * 10_000,
    b'{"messages": [{"role": "user"}]}',
    b'{"messages": [{"role": "nobody", "content": "a"}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "nowhere"}}]}]}',
)


def request(path, body, *, method="POST", headers=(), length=None):
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    if not any(line.lower().startswith("content-type") for line in headers):
        lines.append("Content-Type: application/json")
    if not any(line.lower().startswith("transfer-encoding") for line in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


def odd_requests(model, count):
    """Names and bytes; `count` of them are bodies of random fields."""
    good = json.dumps({**GOOD, "model": model}).encode()
    found = [
        (f"body {number} to {path}", request(path, body))
        for path in (CHAT, TEXTS, ANSWERS)
        for number, body in enumerate(BODIES)
    ]
    found += [
        ("no such path", request("/nowhere", good)),
        ("a path of bytes", request("/%00%ff/../..", good)),
        ("GET", request(CHAT, b"", method="GET")),
        ("DELETE", request(CHAT, good, method="DELETE")),
        ("no method", request(CHAT, good, method="JUNK")),
        ("no HTTP", b"hello\r\n\r\n"),
        ("bytes", bytes(range(256)) * 8),
        ("another type", request(CHAT, good, headers=["Content-Type: text/plain"])),
        ("another charset", request(CHAT, good, headers=["Content-Type: application/json; charset=utf-16"])),
        ("a long header", request(CHAT, good, headers=["X-Long: " + "x" * 100_000])),
        ("many headers", request(CHAT, good, headers=[f"X-{n}: {n}" for n in range(3000)])),
        ("no length", request(CHAT, good, length="junk")),
        ("a negative length", request(CHAT, good, length=-5)),
        ("a length that is too small", request(CHAT, good, length=10)),
        ("chunks that are none", request(CHAT, b"zz\r\n" + good, headers=["Transfer-Encoding: chunked"])),
        ("a name of a file", request(CHAT, json.dumps({**GOOD, "model": "../../etc/passwd"}).encode())),
    ]
    rng = random.Random(0)
    for number in range(count):
        path = rng.choice((CHAT, TEXTS, ANSWERS))
        body = {"model": model, **BASES[path]}
        for field in rng.sample(FIELDS[path], rng.choice((1, 1, 2, 3))):
            body[field] = rng.choice(VALUES)
        found.append((f"fields {number}: {str(body)[:300]}", request(path, json.dumps(body).encode())))
    return found


def sent(port, data, *, cut=None, wait=60):
    """What comes back, until the server closes; with `cut` the client leaves after so many bytes of its request."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        try:
            connection.sendall(data if cut is None else data[:cut])
        except OSError:
            return b"closed"
        if cut is not None:
            return b"left"
        got = b""
        try:
            while part := connection.recv(65536):
                got += part
        except ConnectionResetError:
            return got or b"closed"
        return got or b"closed"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_odd_requests_are_answered_and_change_no_other_answer(tmp_path):
    for package in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(package, reason=f"{package} is not installed, which `transformers serve` needs")
    import serve

    serve.small_model(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = f"-m nki_hf.serve {tmp_path} --continuous-batching --attn-implementation sdpa --device cpu --dtype float32".split()
    words += f"--host 127.0.0.1 --port {port} --cb-block-size 16 --cb-num-blocks 16 --cb-max-batch-tokens 64".split()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "examples"))), "HF_HUB_OFFLINE": "1"}
    good = request(CHAT, json.dumps({**GOOD, "model": str(tmp_path)}).encode())
    log = []
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ) as server:
        try:
            for line in server.stdout:
                if b"Uvicorn running" in line:
                    break
            threading.Thread(target=lambda: log.extend(server.stdout), daemon=True).start()
            expected = sent(port, good)
            assert expected.startswith(b"HTTP/1.1 200")
            answer = json.loads(expected.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"]
            statuses = {}
            for number, (name, data) in enumerate(odd_requests(str(tmp_path), 150)):
                try:
                    got = sent(port, data)
                except TimeoutError:
                    raise AssertionError(f"{name} is not answered") from None
                statuses[name] = got[:12].decode("latin-1")
                assert got == b"closed" or got.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")), (name, got[:300])
                assert server.poll() is None, (name, log[-20:])
                if number % 20 == 0:
                    for cut in (1, 40, len(good) - 3):
                        sent(port, good, cut=cut)
                    again = json.loads(sent(port, good).partition(b"\r\n\r\n")[2])
                    assert again["choices"][0]["message"]["content"] == answer, name
            again = json.loads(sent(port, good).partition(b"\r\n\r\n")[2])
            assert again["choices"][0]["message"]["content"] == answer
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 130
        finally:
            server.kill()
    ours = [line for line in log if b"/nki_hf/" in line and b'File "' in line]
    print({status: [*statuses.values()].count(status) for status in {*statuses.values()}})  # 500: Transformers' own checks
    assert not ours, ours[:5]
