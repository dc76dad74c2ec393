"""`transformers serve` with sdpa and with nki attention side by side: texts, tokens/s, latencies, and which kernels ran.

    python examples/serve.py                        # CPU: a small random model, 32 requests of many lengths, an HTTP client
    python examples/serve.py --model FOLDER         # a model of yours, with its tokenizer
    python examples/serve.py --disturb              # once more with clients that leave, time out and ask for too much

It needs what `transformers serve` needs (pip install "transformers[serving]") and versions that take our name, which
`nki_hf serving` tells. A server runs per implementation, one after the other; requests are greedy, sent by threads over HTTP in
OpenAI's format. The times are those of this machine: on a CPU the nki server runs a simulator of the chip, so that its
tokens/s say nothing about Trainium.
Exit code 0: all texts are equal and no attention call fell back, 1: they are not, 2: wrong use.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

try:
    import numpy as np
    import typer
    from rich.console import Console
    from rich.table import Table

    import nki_hf
    from nki_hf.adapters.hub_kernel import VARIABLE, serving
    from nki_hf.tools.program import ProgramCommand
except ModuleNotFoundError as missing:
    # The words of a clone that was never installed, or of another Python than the one it was installed in.
    print(
        f'{missing.name} is missing in {sys.executable}: pip install -e ".[hf]" in the folder of this clone.', file=sys.stderr
    )
    sys.exit(2)

SERVER = """
import os, sys
import nki_hf
from transformers.cli.transformers import main
sys.argv = ["transformers", "serve", *sys.argv[1:]]
try:
    main()
finally:
    print("ATTENTION", nki_hf.explain(), sep="\\n", flush=True)
    os._exit(0)  # its threads would keep the process
"""
"""`transformers serve` with our import first, and the report of what ran at its end."""

TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
BLOCK, BLOCKS, BATCH_TOKENS = 64, 128, 512
"""The server's cache, 8,192 tokens, and tokens of a step."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Outcome:
    """What one server answered: texts and seconds by request; its report of attention calls; what the disturbances met."""

    texts: list[str]
    seconds: list[float]
    took: float
    tokens: int
    attention: str = ""
    notes: list[str] = field(default_factory=list)


@app.command(cls=ProgramCommand)
def main(
    model: Annotated[
        Path | None, typer.Option(help="Folder of a model and its tokenizer; default: a small random one.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests of each server.", min=1)] = 32,
    clients: Annotated[int, typer.Option(help="Requests that are under way at once.", min=1)] = 8,
    words: Annotated[int, typer.Option(help="Most words of a prompt.", min=1)] = 400,
    new_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=1)] = 12,
    attn: Annotated[
        str, typer.Option(help="Implementations, with commas; default: sdpa and the name of `nki_hf serving`.")
    ] = "",
    disturb: Annotated[
        bool, typer.Option("--disturb", help="Also clients that leave, time out, ask for too much, and a crowd.")
    ] = False,
) -> None:
    """Serve a model with each implementation, and compare what it answers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server ends too
    found = serving()
    if not attn and found.name is None:
        raise ValueError(found.problem)
    for package in ("fastapi", "uvicorn", "openai"):
        if not _installed(package):
            raise ValueError(f'{package} is missing: pip install "transformers[serving]".')
    names = attn.split(",") if attn else ["sdpa", str(found.name)]
    with tempfile.TemporaryDirectory() as folder:
        path = model or small_model(Path(folder))
        prompts = mixed_prompts(requests, words)
        outcomes = {name: serve(name, path, prompts, clients, new_tokens, disturb=disturb) for name in names}
    sys.exit(0 if report(outcomes) else 1)


def small_model(folder: Path) -> Path:
    """A random Llama of two layers with grouped heads and a tokenizer of words, saved in a folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["?", "<end>", *sorted(set(text_words()))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", eos_token="<end>", pad_token="<end>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=None, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    network = LlamaForCausalLM(config)
    network.lm_head.weight.data[1] = 0.0  # an answer hardly ends before its last token
    network.save_pretrained(folder)
    return folder


def text_words() -> list[str]:
    """The words of the text of this project."""
    path = resources.files("nki_hf") / "tools" / "model_bench" / "alice_chapter_1.txt"
    return re.findall(r"\w+", path.read_text(encoding="utf-8"))


def mixed_prompts(count: int, most: int) -> list[str]:
    """Prompts of 1 to `most` words, the logarithms of their lengths evenly spread, in a fixed random order."""
    rng, text = np.random.default_rng(0), text_words()
    lengths = rng.permutation(np.unique(np.geomspace(1, most, 4 * count).astype(int)))
    starts = rng.integers(0, len(text), count)
    return [" ".join((text * 4)[start : start + int(lengths[n % len(lengths)])]) for n, start in enumerate(starts)]


@contextmanager
def running(name: str, model: Path, log: Any) -> Any:
    """The address of a server, which ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-c", SERVER, str(model), "--continuous-batching", "--attn-implementation", name),
        *("--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)),
        *("--cb-block-size", str(BLOCK), "--cb-num-blocks", str(BLOCKS), "--cb-max-batch-tokens", str(BATCH_TOKENS)),
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), _root())))}
    if not _ours(name):
        # With an entry for FlashAttention's name, Transformers would switch sdpa and eager to it, which may be ours.
        environ.pop(VARIABLE, None)
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ)
    try:
        address = f"http://127.0.0.1:{port}"
        _await(address, process)
        yield address
    finally:
        # The second does not wait for open connections; after SIGTERM the server would end without its report.
        for ending in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            process.send_signal(ending)
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
                break


def _ours(name: str) -> bool:
    """True if an implementation may run kernels of this package: "nki", or a name that the loader resolves."""
    return name == "nki" or "/" in name


def _root() -> str:
    return str(Path(nki_hf.__file__).parents[1])


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with code {process.returncode}.")
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise TimeoutError("the server did not answer within 180 s.")


def ask(address: str, model: Path, prompt: str, new_tokens: int, *, timeout: float = 300) -> tuple[str, int]:
    """The answer to a prompt, and its number of tokens."""
    with _post(address, model, prompt, new_tokens, timeout=timeout) as response:
        answer = json.load(response)
    return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]


def _post(address: str, model: Path, prompt: str, new_tokens: int, *, timeout: float, stream: bool = False) -> Any:
    messages = [{"role": "user", "content": prompt}]
    body = {"model": str(model), "messages": messages, "max_tokens": new_tokens, "temperature": 0, "stream": stream}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=timeout)


def serve(name: str, model: Path, prompts: list[str], clients: int, new_tokens: int, *, disturb: bool) -> Outcome:
    """Send all prompts to a server of one implementation; with `disturb` among clients that misbehave."""
    with tempfile.TemporaryFile() as log:
        try:
            with running(name, model, log) as address:
                ask(address, model, prompts[0], 1)  # the server loads the model with the first request
                outcome = _answers(address, model, prompts, clients, new_tokens, disturb=disturb)
        except Exception as error:
            log.seek(0)
            error.add_note(log.read().decode(errors="replace")[-3000:])
            raise
        log.seek(0)
        outcome.attention = log.read().decode(errors="replace").rpartition("ATTENTION\n")[2]
    return outcome


def _answers(address: str, model: Path, prompts: list[str], clients: int, new_tokens: int, *, disturb: bool) -> Outcome:
    def timed(prompt: str) -> tuple[str, int, float]:
        began = time.perf_counter()
        text, count = ask(address, model, prompt, new_tokens)
        return text, count, time.perf_counter() - began

    notes: list[str] = []
    others = [threading.Thread(target=_disturb, args=(address, model, prompts, notes))] if disturb else []
    for other in others:
        other.start()
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(timed, prompts))
    took = time.perf_counter() - began
    for other in others:
        other.join()
    return Outcome(
        texts=[text for text, _, _ in found], seconds=[seconds for _, _, seconds in found], took=took,
        tokens=sum(count for _, count, _ in found), notes=notes,
    )  # fmt: skip


def _disturb(address: str, model: Path, prompts: list[str], notes: list[str]) -> None:
    """Clients that leave in the middle of an answer, that time out, that ask for more than the model's positions, and a crowd.

    What does not fit the whole cache ends Transformers' worker, with any attention: docs/serving.md.
    """
    for prompt in prompts[:3]:
        with _post(address, model, prompt, 64, timeout=60, stream=True) as response:
            response.readline()
    notes.append("3 clients left in the middle of an answer")
    late = 0
    for prompt in prompts[3:6]:
        try:
            ask(address, model, prompt, 64, timeout=0.05)
        except (TimeoutError, urllib.error.URLError):
            late += 1
    notes.append(f"{late} of 3 clients timed out")
    try:
        _, count = ask(address, model, " ".join(text_words()[:1500]), 100, timeout=300)
        notes.append(f"a request of 1,500 words got {count} tokens")
    except (OSError, KeyError) as error:
        notes.append(f"a request of 1,500 words got {error}")
    with ThreadPoolExecutor(40) as crowd:
        answers = list(crowd.map(lambda prompt: ask(address, model, prompt, 2)[1], ["the rabbit"] * 40))
    notes.append(f"a crowd of 40 got {sum(answers)} tokens")


def report(outcomes: dict[str, Outcome]) -> bool:
    """Print the table and the reports; True if all texts are equal and nothing fell back."""
    console, table = Console(), Table(title="transformers serve, on this CPU; nki on the simulator of a chip")
    for column in ("attention", "requests", "tokens", "tokens/s", "p50 s", "p90 s", "p99 s", "texts equal"):
        table.add_column(column, justify="right")
    first = next(iter(outcomes.values()))
    good = True
    for name, outcome in outcomes.items():
        equal = sum(a == b for a, b in zip(first.texts, outcome.texts, strict=True))
        good = good and equal == len(first.texts)
        spread = [f"{np.percentile(outcome.seconds, part):.2f}" for part in (50, 90, 99)]
        table.add_row(
            name, str(len(outcome.texts)), f"{outcome.tokens:,}", f"{outcome.tokens / outcome.took:.1f}", *spread,
            f"{equal} of {len(first.texts)}",
        )  # fmt: skip
    console.print(table)
    for name, outcome in outcomes.items():
        for note in outcome.notes:
            console.print(f"{name}: {note}", highlight=False)
        if outcome.attention.strip():
            print(f"\nattention of {name}:\n{outcome.attention.strip()}")
        if not _ours(name) and "No attention call" not in outcome.attention:
            console.print(f"{name}: kernels of nki_hf ran, so that this is no reference", highlight=False)
            good = False
        fell_back = re.search(r"([\d,]+) of them ran torch", outcome.attention)
        good = good and (fell_back is None or fell_back.group(1) == "0")
    console.print(
        "PASS: all texts are equal" if good else "FAIL: texts differ, attention fell back, or the reference ran nki",
        highlight=False,
    )
    return good


def _installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    app()
