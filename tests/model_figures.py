"""Figures of the coverage test:

    PYTHONPATH=. python tests/model_figures.py [--dtype bfloat16] [--scale 3] [--control mask|is_causal] [name ...]

Per mode: right through a kernel, right by fallback, refused, wrong; the deviation from eager (median, 90th percentile,
worst); and the same with a part of the adapter switched off, as a control that the comparison can fail.
"""

import argparse
import statistics
import warnings
from collections import Counter

import torch
import transformers
from zoo import ARCHITECTURES, MODES, build, deviation, run_mode

import nki_hf

DTYPES = ("float32", "bfloat16", "float16")
TOLERANCE = 1e-4
"""Of the largest value, in float32. In the other dtypes the error against float32 may be twice that of eager."""


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


def judge(architecture, model, exact, mode):
    """One verdict, its deviation from eager in the same dtype, and the numbers of calls and of fallbacks."""
    expected = run_mode(architecture, model, "eager", mode)
    nki_hf.explain(reset=True)
    try:
        found = run_mode(architecture, model, "nki", mode)
    except (nki_hf.UnsupportedProblem, RuntimeError, TypeError) as error:
        return "refused" if isinstance(error, nki_hf.UnsupportedProblem) else f"wrong ({type(error).__name__})", None, 0, 0
    report = nki_hf.explain()
    off = deviation(found, expected)
    if exact is None:
        right = off <= TOLERANCE and (expected.tokens is None or torch.equal(found.tokens, expected.tokens))
    else:
        reference = run_mode(architecture, exact, "eager", mode)
        epsilon = torch.finfo(next(model.parameters()).dtype).eps
        right = deviation(found, reference) <= 2 * deviation(expected, reference) + 2 * epsilon
    if not right:
        return "wrong", off, report.calls, report.fallbacks
    return ("fallback" if report.fallbacks else "kernel"), off, report.calls, report.fallbacks


def main():
    """Run all architectures, or those named, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--scale", type=float, default=1.0, help="of the query and key weights")
    parser.add_argument("--control", choices=("mask", "is_causal"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    control(options.control)
    dtype = getattr(torch, options.dtype)
    verdicts, deviations, calls, fallbacks, reasons = {}, [], 0, 0, Counter()
    broken, farthest = set(), (0.0, "")
    for architecture in ARCHITECTURES:
        if options.names and architecture.name not in options.names:
            continue
        model = build(architecture, dtype, options.scale)
        exact = None
        if options.dtype != "float32":
            exact = build(architecture)
            exact.load_state_dict(model.state_dict())  # the rounded weights
        for mode in MODES[architecture.kind]:
            if options.dtype != "float32" and mode in ("dynamic", "static"):
                continue  # one rounding can flip a token, and everything after it
            try:
                verdict, off, ran, fell = judge(architecture, model, exact, mode)
            except (KeyError, RuntimeError, ValueError) as error:
                verdict, off, ran, fell = f"eager fails ({type(error).__name__})", None, 0, 0
            verdicts.setdefault(mode, Counter())[verdict] += 1
            calls, fallbacks = calls + ran, fallbacks + fell
            reasons.update(nki_hf.explain().reasons())
            if off is not None:
                deviations.append(off)
                farthest = max(farthest, (off, f"{architecture.kind}/{architecture.name} {mode}"))
            if verdict not in ("kernel", "fallback") and not verdict.startswith("eager"):
                broken.add(architecture.name)
                print(f"{verdict}: {architecture.kind}/{architecture.name} {mode} {off}", flush=True)
    names = {each.name for each in ARCHITECTURES}
    scaled = f"weights of the scores times {options.scale:g}"
    print(f"\\n{len(names)} architectures, {options.dtype}, {scaled}, control: {options.control or 'none'}")
    for mode, counts in verdicts.items():
        print(f"{mode:>8}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    share = 100 * (calls - fallbacks) / max(1, calls)
    print(f"{calls:,} attention calls, {share:.1f} % through a kernel; {len(broken)} architectures not right")
    for reason, count in reasons.most_common():
        print(f"  {count:,} calls by fallback: {reason}")
    finite = sorted(off for off in deviations if off == off)
    tenth = finite[int(0.9 * (len(finite) - 1))]
    print(f"deviation from eager: median {statistics.median(finite):.1e}, 90th percentile {tenth:.1e}")
    print(f"worst {farthest[0]:.1e}, {farthest[1]}")


if __name__ == "__main__":
    main()
