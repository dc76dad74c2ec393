"""References of a model's bench: eager on CPU in the reference's dtype and in the run's, from the cache where it is there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers

from nki_hf.tools.model_bench import eager_in_rows
from nki_hf.tools.model_bench.accuracy import Baseline, baseline
from nki_hf.tools.model_bench.model import Subject
from nki_hf.tools.model_bench.options import BenchOptions
from nki_hf.tools.model_bench.reference_cache import cached_array

__all__ = ["References", "Say"]

Array = np.ndarray[Any, Any]
Say = Callable[[str], None]
"""Takes one line for the user."""


class References:
    """The reference, eager's output in the run's dtype, and which rows count."""

    def __init__(self, subject: Subject, options: BenchOptions, say: Say, step: Say) -> None:
        step("fingerprint of weights and input")
        fingerprint = subject.fingerprint()
        self.valid = subject.prompt.valid.numpy()
        self.hits: list[bool] = []

        def cached(dtype: str) -> Array:
            step(f"CPU reference, eager in {dtype}")
            key = {**fingerprint, "dtype": dtype, "torch": torch.__version__, "transformers": transformers.__version__}
            found = cached_array(options.reference_dir, key, lambda: _eager_on_cpu(subject, dtype), say=say)
            self.hits.append(found.hit)
            return found.array

        self.reference = cached(options.reference_dtype)
        self.baseline = cached(options.torch_dtype)
        self.dtype = options.reference_dtype

    def of_eager(self, rows: slice) -> Baseline:
        """Eager's own errors over some token positions."""
        return baseline(self.baseline[:, rows], self.reference[:, rows], valid=self.valid[:, rows])

    def describe(self, options: BenchOptions) -> dict[str, str]:
        """For the record."""
        return {
            "what": f"eager in {self.dtype} on CPU, same weights",
            "from_cache": "yes" if all(self.hits) else "no",
            "folder": str(options.reference_dir),
        }


def _eager_on_cpu(subject: Subject, dtype: str) -> Array:
    """Eager's last hidden state `[batch, seqlen, hidden]` on CPU, the weights converted to `dtype` (exactly, upwards)."""
    wanted = getattr(torch, dtype)
    model = subject.model if subject.model.dtype == wanted else copy.deepcopy(subject.model).to(wanted)
    with _attention(model, eager_in_rows.register()), torch.inference_mode():
        out = model(input_ids=subject.prompt.input_ids, attention_mask=subject.prompt.attention_mask, use_cache=False)
    hidden = out.last_hidden_state
    return (hidden if dtype == "float64" else hidden.float()).numpy()


@contextmanager
def _attention(model: Any, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
