"""`transformers serve` with sdpa and with nki attention side by side: texts, tokens/s, latencies, and which kernels ran.

    python examples/serve.py                        # CPU: a small random model, 32 requests of many lengths, an HTTP client
    python examples/serve.py --model FOLDER         # a model of yours, with its tokenizer
    python examples/serve.py --disturb              # among clients that leave, are killed, time out, ask for too much

It needs what `transformers serve` needs (pip install "transformers[serving]") and versions that take our name, which
`nki_hf serving` tells. A server (`python -m nki_hf.serve`) runs per implementation, one after the other; requests are greedy,
sent by threads over HTTP in OpenAI's format. The times are those of this machine: on a CPU the nki server runs a simulator of
the chip, so that its tokens/s say nothing about Trainium. No server outlives this program, however it ends.
Exit code 0: all texts are equal, nki ran kernels only and sdpa none of ours, 1: it is not so, 2: wrong use.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

try:
    import numpy as np
    import typer
    from http_serving.clients import ask, fill_queue, in_background, threads, words_of_text
    from http_serving.server import ours, running

    from nki_hf.adapters.hub_kernel import serving
    from nki_hf.tools.program import ProgramCommand
    from nki_hf.tools.screen import Screen
except KeyboardInterrupt:
    print("interrupted.", file=sys.stderr)
    sys.exit(130)
except ModuleNotFoundError as missing:
    # The words of a clone that was never installed, or of another Python than the one it was installed in.
    print(
        f'{missing.name} is missing in {sys.executable}: pip install -e ".[hf]" in the folder of this clone.', file=sys.stderr
    )
    sys.exit(2)

TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
QUEUE = 2
"""Requests that may wait for the batch with --disturb."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Outcome:
    """What one server answered.

    Attributes:
      texts, seconds: by request.
      took: seconds for all of them.
      tokens: of all answers.
      attention: the server's report of attention calls (http_serving/process.py).
      notes: what the disturbances met.
      good: False if a disturbance changed somebody else's answer, or failed.
    """

    texts: list[str]
    seconds: list[float]
    took: float
    tokens: int
    attention: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    good: bool = True


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
        bool,
        typer.Option("--disturb", help="Also clients that leave, are killed, or ask for much, and a full queue."),
    ] = False,
) -> None:
    """Serve a model with each implementation, and compare what it answers."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server's report is waited for
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

    vocabulary = {word: number for number, word in enumerate(["?", "<end>", *sorted(set(words_of_text()))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?", eos_token="<end>", pad_token="<end>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=1,
    )
    network = LlamaForCausalLM(config)
    network.lm_head.weight.data[1] = 0.0  # an answer hardly ends before its last token
    network.save_pretrained(folder)
    return folder


def mixed_prompts(count: int, most: int) -> list[str]:
    """Prompts of 1 to `most` words, the logarithms of their lengths evenly spread, in a fixed random order."""
    rng, text = np.random.default_rng(0), words_of_text()
    lengths = rng.permutation(np.unique(np.geomspace(1, most, 4 * count).astype(int)))
    starts = rng.integers(0, len(text), count)
    return [" ".join((text * 4)[start : start + int(lengths[n % len(lengths)])]) for n, start in enumerate(starts)]


def serve(name: str, model: Path, prompts: list[str], clients: int, new_tokens: int, *, disturb: bool) -> Outcome:
    """Send all prompts to a server of one implementation; with `disturb` among clients that misbehave."""
    with running(name, model, queue=QUEUE if disturb else 0) as server:
        ask(server, prompts[0], 1)  # the server loads the model with the first request

        def timed(prompt: str) -> tuple[str, int, float]:
            began = time.perf_counter()
            text, count = ask(server, prompt, new_tokens)
            return text, count, time.perf_counter() - began

        notes: list[str] = []
        others = in_background(server, prompts, notes) if disturb else None
        began = time.perf_counter()
        with threads(clients) as pool:
            found = list(pool.map(timed, prompts))
        outcome = Outcome(
            texts=[text for text, _, _ in found],
            seconds=[seconds for _, _, seconds in found],
            took=time.perf_counter() - began,
            tokens=sum(count for _, count, _ in found),
            attention=server.attention,
            notes=notes,
        )
        if others is not None:
            others.join()
            outcome.good = fill_queue(server, prompts[:8], outcome.texts[:8], new_tokens, notes)
            outcome.good = outcome.good and not any(note.startswith("FAILED") for note in notes)
    return outcome


def report(outcomes: dict[str, Outcome]) -> bool:
    """Print the table and the reports; True if all texts are equal, ours ran kernels only, and the others none."""
    screen, rows, wrong = Screen(), [], []
    first = next(iter(outcomes.values()))
    for name, outcome in outcomes.items():
        equal = sum(a == b for a, b in zip(first.texts, outcome.texts, strict=True))
        if equal < len(first.texts):
            wrong.append(f"{name}: {len(first.texts) - equal} texts differ")
        spread = [f"{np.percentile(outcome.seconds, part):.2f}" for part in (50, 90, 99)]
        calls, fallbacks = outcome.attention["calls"], outcome.attention["fallbacks"]
        kernels = ", ".join(f"{kernel} {count:,}" for kernel, count in outcome.attention["kernels"].items()) or "none of ours"
        row = (name, f"{len(outcome.texts)}", f"{outcome.tokens:,}", f"{outcome.tokens / outcome.took:.1f}", *spread, kernels)
        rows.append((*row, f"{equal} of {len(first.texts)}"))
        if ours(name) and (not calls or fallbacks):
            wrong.append(f"{name}: of {calls:,} attention calls {fallbacks:,} ran torch")
        if not ours(name) and calls:
            wrong.append(f"{name}: {calls:,} attention calls ran kernels of nki_hf, so that this is no reference")
        if not outcome.good:
            wrong.append(f"{name}: a disturbance changed an answer, or failed")
    head = ("attention", "requests", "tokens", "tokens/s", "p50 s", "p90 s", "p99 s", "kernels", "texts equal")
    screen.table(head, rows, title="transformers serve on this CPU; nki on the simulator of a chip", left=(0, 7))
    for name, outcome in outcomes.items():
        screen.say(*(f"{name}: {note}" for note in outcome.notes))
        if outcome.attention["calls"]:
            screen.say("", f"attention of {name}:")
            for line in outcome.attention["text"].splitlines():
                screen.line(line)
    screen.say(f"FAIL: {'; '.join(wrong)}" if wrong else "PASS: all texts are equal")
    return not wrong


def _installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    app()
