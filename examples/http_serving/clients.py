"""Clients in OpenAI's format: one that asks and waits, and disturbing ones, a process that is killed among them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from typing import Any

from http_serving.server import BLOCK, BLOCKS, Server

__all__ = ["ask", "disturb", "fill_queue", "in_background", "killed_client", "leave", "threads", "too_long", "words_of_text"]

_CLIENT = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as response:
    for line in response:
        print(line.decode(), flush=True)
"""
"""A client process: it prints its answer, line by line as it comes."""


def words_of_text() -> list[str]:
    """The words of the text of this project."""
    path = resources.files("nki_hf") / "tools" / "model_bench" / "alice_chapter_1.txt"
    return re.findall(r"\w+", path.read_text(encoding="utf-8"))


def ask(server: Server, prompt: str, new_tokens: int, *, timeout: float = 300) -> tuple[str, int]:
    """The answer to a prompt, and its number of tokens."""
    with _post(server, prompt, new_tokens, timeout=timeout) as response:
        answer = json.load(response)
    return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]


def leave(server: Server, prompt: str, new_tokens: int) -> None:
    """Ask for a streamed answer, and close the connection after its first line: the server cancels the request."""
    with _post(server, prompt, new_tokens, timeout=60, stream=True) as response:
        response.readline()


def killed_client(server: Server, prompt: str, new_tokens: int) -> bool:
    """A client in a process of its own that is killed (`kill -9`) in the middle of its answer; True if it was in the middle."""
    words = [sys.executable, "-S", "-c", _CLIENT, _address(server), _body(server, prompt, new_tokens, stream=True)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as client:
        try:
            began = client.stdout.readline().startswith("data:")
        finally:
            client.kill()
        return began and "finish_reason" not in client.stdout.read() and client.wait() < 0


@contextmanager
def threads(count: int) -> Any:
    """A pool whose threads are not waited for if an error or an interrupt leaves the block: the server's end is theirs."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def disturb(server: Server, prompts: list[str], notes: list[str]) -> None:
    """Clients that leave, are killed, time out, ask for more than the model or the cache has, and a crowd: as notes."""
    for prompt in prompts[:3]:
        leave(server, prompt, 64)
    notes.append("3 clients left in the middle of an answer")
    killed = sum(killed_client(server, prompt, 200) for prompt in prompts[:3])
    notes.append(f"{killed} of 3 client processes were killed in the middle of an answer")
    late = 0
    for prompt in prompts[3:6]:
        try:
            ask(server, prompt, 64, timeout=0.02)
        except (TimeoutError, urllib.error.URLError):
            late += 1
    notes.append(f"{late} of 3 clients timed out")
    try:
        _, count = ask(server, " ".join(words_of_text()[:1500]), 100)
        notes.append(f"a request of 1,500 words got {count} tokens")
    except (OSError, KeyError) as error:
        notes.append(f"a request of 1,500 words got {error}")
    notes.append(too_long(server))
    with ThreadPoolExecutor(40) as crowd:
        answers = list(crowd.map(lambda prompt: ask(server, prompt, 2)[1], ["the rabbit"] * 40))
    notes.append(f"a crowd of 40 got {sum(answers)} tokens")


def too_long(server: Server) -> str:
    """Many at once ask for more than the whole cache holds, in the prompt or the answer, streamed or not: what they got.

    By itself Transformers would end its worker, and everybody's requests with it.
    """
    text, room = words_of_text(), BLOCK * BLOCKS
    cases = [(" ".join((text * 9)[: room + 1]), 1), (" ".join(text[:20]), room), ("the rabbit", 10**9)] * 4

    def refused(number: int) -> bool:
        prompt, new_tokens = cases[number]
        try:
            with _post(server, prompt, new_tokens, timeout=60, stream=number % 2 == 0) as response:
                response.readline()
        except urllib.error.HTTPError as error:
            return error.code == 400 and f"{room:,} tokens" in error.read().decode()
        return False

    with ThreadPoolExecutor(len(cases)) as crowd:
        count = sum(crowd.map(refused, range(len(cases))))
    failed = "" if count == len(cases) else "FAILED: "
    return f"{failed}{count} of {len(cases)} requests beyond the whole cache were refused with the reason"


def fill_queue(server: Server, prompts: list[str], texts: list[str], new_tokens: int, notes: list[str]) -> bool:
    """Ask more than the queue takes while the server takes nothing out of it; True if who got an answer got the right one.

    Args:
      server: one with a queue of few requests.
      prompts, texts: some prompts, more than the queue takes, and their answers.
      new_tokens: of an answer.
      notes: is added to.
    """
    server.pause(12)  # a request waits for 10 s for a place

    def outcome(prompt: str) -> str | None:
        try:
            return ask(server, prompt, new_tokens)[0]
        except urllib.error.HTTPError:
            return None

    with threads(len(prompts)) as pool:
        found = list(pool.map(outcome, prompts))
    again = [ask(server, prompt, new_tokens)[0] for prompt in prompts]
    refused = found.count(None)
    notes.append(f"of {len(found)} requests to a full queue {refused} were refused; afterwards all were answered")
    return again == texts and all(text in (None, wanted) for text, wanted in zip(found, texts, strict=True))


def in_background(server: Server, prompts: list[str], notes: list[str]) -> threading.Thread:
    """`disturb` in a thread that keeps no process alive; an error is a note."""

    def run() -> None:
        try:
            disturb(server, prompts, notes)
        except Exception as error:
            notes.append(f"FAILED: {type(error).__name__}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _address(server: Server) -> str:
    return f"{server.address}/v1/chat/completions"


def _body(server: Server, prompt: str, new_tokens: int, *, stream: bool) -> str:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": str(server.model), "messages": messages, "max_tokens": new_tokens, "temperature": 0, "stream": stream}
    return json.dumps(body)


def _post(server: Server, prompt: str, new_tokens: int, *, timeout: float, stream: bool = False) -> Any:
    body = _body(server, prompt, new_tokens, stream=stream).encode()
    request = urllib.request.Request(_address(server), body, {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=timeout)
