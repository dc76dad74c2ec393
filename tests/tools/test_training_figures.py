"""tools/training_figures.py: each side takes its gradients from where it says, and both do as many steps."""

from collections import Counter

import torch

from nki_hf.adapters import gradients
from tools import training_figures


def test_one_side_runs_the_kernel_and_the_other_the_formulas(monkeypatch):
    ran = Counter()

    def counted(name, function):
        def run(*args, **options):
            ran[name] += 1
            return function(*args, **options)

        return run

    monkeypatch.setattr(gradients, "_by_kernel", counted("kernel", gradients._by_kernel))
    formulas = counted("formulas", training_figures.attention_gradients)
    monkeypatch.setattr(training_figures, "attention_gradients", formulas)
    found = training_figures.measure(layers=1, seqlen=16, vocabulary=32, pairs=1, dtype=torch.float32)
    assert {side: len(costs) for side, costs in found.items()} == {"formulas": 2, "flash_backward": 2}
    assert ran == {"formulas": 3, "kernel": 2}  # one more of the formulas before anything is timed
    assert all(0 < seconds for costs in found.values() for cost in costs for seconds in cost)
