"""Lints a checkout of aws-neuron/nki-library: its kernels compile, so whatever is refused there has to be explained.

    git clone https://github.com/aws-neuron/nki-library && git -C nki-library checkout d2ad3a579498d1888aa8740af97fd325dd5f2740
    python tools/lint_public.py nki-library

Exit code 1 if a refusal is not explained, or an explained one is no longer found.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from nki_hf.tools.kernel_lint import RULES, lint

EXPLAINED = {
    ("core/mlp/mlp.py", "syntax"): "the file is not Python: an indentation error",
    ("core/moe/moe_cte/bwmm_shard_on_I.py", "gone-in-0.7"): "released for 0.3; the name went with 0.7",
    ("core/moe/moe_cte/bwmm_shard_on_I_mx.py", "gone-in-0.7"): "the same",
    ("experimental/dynamic_shapes/dynamic_elementwise_add.py", "gone-in-0.7"): "the same",
    ("core/moe/moe_cte/bwmm_shard_on_block_mx.py", "register-while"): "the same, for `while` on a register",
    ("core/moe/moe_tkg/all_expert_mx_impl.py", "register-while"): "the same",
    ("core/moe/moe_cte/bwmm_shard_on_block.py", "psum-in-dma"): "in a branch for training (checkpoints of activations)",
    ("core/moe/moe_cte/moe_cte_mx_utils.py", "slice-target"): "in the branch use_dma_tp=True: a tile is assigned to",
    ("core/moe/moe_cte/moe_cte_utils.py", "unknown-argument"): "in a branch for scales: dtype= of before 0.2",
}
"""(file, rule) -> why a library that compiles has it."""


def main(checkout: Path) -> int:
    """Prints every refusal with its explanation, and how often each piece of advice is found."""
    rows = lint(checkout / "src/nkilib_src/nkilib")
    findings = {found for row in rows for group in row.findings.values() for found in group}
    refused = {(found.file, found.rule) for found in findings if RULES[found.rule].refused}
    for key in sorted(refused | set(EXPLAINED)):
        lines = sorted(found.line for found in findings if (found.file, found.rule) == key)
        print(f"{key[0]}:{','.join(map(str, lines)) or 'not found'}: {key[1]}: {EXPLAINED.get(key, 'NOT EXPLAINED')}")
    advice = Counter(found.rule for found in findings if not RULES[found.rule].refused)
    print(f"{len(rows)} modules, {sum(len(row.kernels) for row in rows)} kernels; advice: {dict(advice.most_common())}")
    return int(refused != set(EXPLAINED))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "src/nkilib_src/nkilib").is_dir():
        sys.exit("usage: python tools/lint_public.py FOLDER, a checkout of nki-library with src/nkilib_src/nkilib.")
    sys.exit(main(Path(sys.argv[1])))
