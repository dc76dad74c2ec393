"""What a decode step costs beside torch's sdpa, and how often a kernel is run as Python again.

    PYTHONPATH=. python tools/decode_figures.py [--steps 40] [--dtype bfloat16]

One attention layer (Qwen3-0.6B's: 16 query and 8 kv heads of 128; and a small one), a cache that grows by a token a step.
Per cached length: milliseconds of a step with sdpa and with nki on the simulator, alternating in one run, and their ratio;
of the nki step, the replay of the recorded instructions alone; and kernels run as Python after the first step. Milliseconds
are wall clock / CPU of the process, medians; with other programs on the machine only the latter mean something. The simulator
executes the instructions of a Trainium kernel in NumPy: its time says nothing about a chip.
"""

import argparse
import statistics
import time
from operator import truediv
from types import SimpleNamespace

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import nki_hf
from nki_hf.adapters.transformers import nki_attention
from nki_hf.backends.simulator import simulator_backend
from nki_hf.sim.execution.numerics import engine_numerics

CACHED = (128, 1024, 4096)
LAYERS = {"16/8 heads of 128": (16, 8, 128), "4/2 heads of 16": (4, 2, 16)}


def cost(function):
    """Wall-clock and CPU milliseconds of one call."""
    start = time.perf_counter(), time.process_time()
    function()
    return (time.perf_counter() - start[0]) * 1e3, (time.process_time() - start[1]) * 1e3


def middle(costs):
    """Medians of wall-clock and of CPU milliseconds."""
    return tuple(statistics.median(each) for each in zip(*costs, strict=True))


def replay_cost(target, parts):
    """The instructions of the recording that was used last, for all parts, without inputs and outputs."""
    program, _ = next(reversed(target._pool._idle.values()))[-1]

    def replay():
        with engine_numerics():
            for _ in range(parts):
                for actions in program.actions:
                    for action in actions:
                        action()

    return middle([cost(replay) for _ in range(11)])


def figures(sizes, cached, steps, dtype):
    """Costs of a step with sdpa, with nki, of the replay alone; and re-traces after the first step."""
    heads_q, heads_kv, head_dim = sizes
    module = SimpleNamespace(
        training=False, is_causal=True, layer_idx=0, num_key_value_groups=heads_q // heads_kv, config=SimpleNamespace()
    )
    target = simulator_backend("trn2")
    target.clear()
    keys, values = torch.randn(2, 1, heads_kv, cached + steps + 1, head_dim).to(dtype)
    costs = {sdpa_attention_forward: [], nki_attention: []}
    for step in range(steps + 1):
        length = cached + step + 1
        q, k, v = torch.randn(1, heads_q, 1, head_dim).to(dtype), keys[:, :, :length], values[:, :, :length]
        for attention, taken in costs.items():
            taken.append(cost(lambda call=attention, x=(q, k, v): call(module, *x, None, scaling=head_dim**-0.5, dropout=0.0)))
        if step == 0:
            recorded = target.programs_recorded
    sdpa, nki = (middle(taken[1:]) for taken in costs.values())
    return sdpa, nki, replay_cost(target, heads_kv), target.programs_recorded - recorded


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.dtype}, batch 1, one torch thread, wall clock / CPU, median of {options.steps} steps")
    print("| layer | cached tokens | sdpa ms | nki ms | nki / sdpa | replay ms | nki / replay | re-traces |")
    print("|---|---|---|---|---|---|---|---|")
    with torch.no_grad(), nki_hf.using(strict=True, backend="simulator", chip="trn2"):
        for name, sizes in LAYERS.items():
            for cached in CACHED:
                sdpa, nki, replay, again = figures(sizes, cached, options.steps, getattr(torch, options.dtype))
                cells = [
                    name,
                    f"{cached:,}",
                    pair(sdpa),
                    pair(nki),
                    pair(map(truediv, nki, sdpa)),
                    pair(replay),
                    pair(map(truediv, nki, replay)),
                    str(again),
                ]
                print(f"| {' | '.join(cells)} |", flush=True)


def pair(numbers):
    """Wall clock / CPU, as text."""
    return " / ".join(f"{number:.2f}" for number in numbers)


if __name__ == "__main__":
    main()
