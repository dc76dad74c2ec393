"""A server with nki under many requests for minutes: no wrong answer, no growing memory, while clients leave and are killed.

    PYTHONPATH=. python tools/serving_soak.py [--requests 2000]

`transformers serve` over HTTP, as in examples/serve.py: requests of 1 to 60 words, arrivals by a fixed seed, 32 at once at
most. Of every 40, one client process is killed (`kill -9`) in the middle of its answer, one leaves, and one is too impatient to
wait. Every other answer is compared with that of a server with sdpa. Memory is the server's resident set, after each answer.
"""

import argparse
import resource
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from http_serving.clients import ask, killed_client, leave  # noqa: E402
from http_serving.server import running  # noqa: E402
from serve import mixed_prompts, small_model  # noqa: E402

from nki_hf.adapters.hub_kernel import serving  # noqa: E402

KINDS, WORDS, NEW_TOKENS, AT_ONCE = 40, 60, 8, 32
GAP_S = 0.02
"""Mean seconds from one arrival to the next."""


def resident_bytes(pid):
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def soak(server, prompts, expected, count):
    """Counts of what became of the requests, and memory by the number of those that were done."""
    rng, lock = np.random.default_rng(0), threading.Lock()
    kinds, gaps = rng.integers(0, len(prompts), count), rng.exponential(GAP_S, count)
    found, memory, free = dict.fromkeys(("answered", "wrong", "killed", "left", "late"), 0), [], threading.Semaphore(AT_ONCE)

    def one(number):
        kind = int(kinds[number])
        try:
            match number % 40:
                case 9:
                    what = "killed" if killed_client(server, prompts[kind], 64) else "answered"
                case 19:
                    leave(server, prompts[kind], 64)
                    what = "left"
                case 29:
                    try:
                        ask(server, prompts[kind], 64, timeout=0.01)
                        what = "answered"
                    except OSError:
                        what = "late"
                case _:
                    what = "answered" if ask(server, prompts[kind], NEW_TOKENS)[0] == expected[kind] else "wrong"
            with lock:
                found[what] += 1
                memory.append(resident_bytes(server.process.pid))
        finally:
            free.release()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = []
        for number in range(count):
            time.sleep(gaps[number])
            free.acquire()
            futures.append(pool.submit(one, number))
        for future in futures:
            future.result()
    return found, memory


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    count = parser.parse_args().requests
    name = serving().name
    if name is None:
        sys.exit(serving().problem)
    prompts = mixed_prompts(KINDS, WORDS)
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(Path(folder))
        with running("sdpa", model) as server:
            expected = [ask(server, prompt, NEW_TOKENS)[0] for prompt in prompts]
        began = time.perf_counter()
        with running(name, model) as server:
            found, memory = soak(server, prompts, expected, count)
            took = time.perf_counter() - began
    early = max(memory[: count // 4])
    growth = max(memory) / early - 1
    attention = server.attention
    print(
        f"{count:,} requests in {took:,.0f} s: {', '.join(f'{number:,} {what}' for what, number in found.items())}; "
        f"{attention['calls']:,} attention calls, {attention['fallbacks']} of them torch; memory after the first quarter "
        f"{early / 2**20:,.0f} MiB, {growth:+.1%} at most after it"
    )
    good = not found["wrong"] and attention["calls"] and not attention["fallbacks"] and growth <= 0.02
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
