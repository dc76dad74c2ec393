"""Figures of the coverage test.

    python tools/model_figures.py [--dtype bfloat16] [--scale 3] [--shard 1/4]
        [--control mask|is_causal] [name ...]

Architectures that are equal to eager in every mode, those of which some mode is as sdpa (which differs from eager there
itself), and wrong ones. Per mode: equal through a kernel, equal by fallback, as sdpa, refused, wrong; the deviation from
eager (median, 90th percentile, worst). With a part of the adapter switched off as a control that the comparison can fail.
"""

import argparse
import statistics
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from zoo import ARCHITECTURES, MODES, build, deviation, run_mode, verdict

import nki_hf

DTYPES = ("float32", "bfloat16", "float16")


def control(name):
    """Switch one part of the adapter off."""
    from nki_hf.adapters import transformers as adapter

    nki_hf.register()
    if name == "mask":
        transformers.AttentionMaskInterface._global_mapping.pop("nki")
    if name == "is_causal":

        def ignoring(module, query, key, value, attention_mask, is_causal=None, **kwargs):
            return adapter.nki_attention(module, query, key, value, attention_mask, is_causal=True, **kwargs)

        transformers.AttentionInterface.register("nki", ignoring)


def judge(architecture, model, mode):
    """One verdict, its deviation from eager in the same dtype, and the numbers of calls and of fallbacks."""
    expected = run_mode(architecture, model, "eager", mode)
    nki_hf.explain(reset=True)
    try:
        found = run_mode(architecture, model, "nki", mode)
    except (nki_hf.UnsupportedProblem, RuntimeError, TypeError) as error:
        return "refused" if isinstance(error, nki_hf.UnsupportedProblem) else f"wrong ({type(error).__name__})", None, 0, 0
    report = nki_hf.explain()
    off = deviation(found, expected)
    judged = verdict(found, expected, architecture, model, mode)
    if judged == "equal":
        judged = "fallback" if report.fallbacks else "kernel"
    return judged, off, report.calls, report.fallbacks


def main():
    """Run all architectures, or those named, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--scale", type=float, default=1.0, help="of the query and key weights")
    parser.add_argument("--shard", default="1/1", help="which part of the list, so that several processes can share it")
    parser.add_argument("--control", choices=("mask", "is_causal"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    control(options.control)
    dtype = getattr(torch, options.dtype)
    verdicts, deviations, calls, fallbacks, reasons = {}, [], 0, 0, Counter()
    worst, farthest = {}, (0.0, "")
    shard, shards = map(int, options.shard.split("/"))
    chosen = [each for each in ARCHITECTURES if not options.names or each.name in options.names][shard - 1 :: shards]
    for architecture in chosen:
        model = build(architecture, dtype, options.scale)
        for mode in MODES[architecture.kind]:
            if options.dtype != "float32" and mode in ("dynamic", "static"):
                continue  # one rounding can flip a token, and everything after it
            try:
                judged, off, ran, fell = judge(architecture, model, mode)
            except (KeyError, RuntimeError, ValueError, AssertionError) as error:
                judged, off, ran, fell = f"eager fails ({type(error).__name__}: {error})", None, 0, 0
            verdicts.setdefault(mode, Counter())[judged] += 1
            calls, fallbacks = calls + ran, fallbacks + fell
            reasons.update(nki_hf.explain().reasons())
            if off is not None:
                deviations.append(off)
                farthest = max(farthest, (off, f"{architecture.kind}/{architecture.name} {mode}"))
            column = 0 if judged in ("kernel", "fallback") or judged.startswith("eager") else 1 if judged == "as sdpa" else 2
            identity = f"{architecture.kind}/{architecture.name}"
            worst[identity] = max(worst.get(identity, 0), column)
            if column or judged.startswith("eager"):
                print(f"{judged}: {identity} {mode} {off}", flush=True)
    scaled = f"weights of the scores times {options.scale:g}"
    print(f"\n{len(chosen)} models, {options.dtype}, {scaled}, control: {options.control or 'none'}")
    counts = Counter(worst.values())
    print(f"equal {counts[0]}, as sdpa {counts[1]}, wrong {counts[2]}")
    for mode, of_mode in verdicts.items():
        print(f"{mode:>8}: " + ", ".join(f"{count} {verdict}" for verdict, count in of_mode.most_common()))
    share = 100 * (calls - fallbacks) / max(1, calls)
    print(f"{calls:,} attention calls, {share:.1f} % through a kernel")
    for reason, count in reasons.most_common():
        print(f"  {count:,} calls by fallback: {reason}")
    finite = sorted(off for off in deviations if off == off)
    tenth = finite[int(0.9 * (len(finite) - 1))]
    print(f"deviation from eager: median {statistics.median(finite):.1e}, 90th percentile {tenth:.1e}")
    print(f"worst {farthest[0]:.1e}, {farthest[1]}")


if __name__ == "__main__":
    main()
