"""Calls of attention that fill what the package keeps for the next one: how that is emptied, the call, and what is right."""

import warnings

import torch

import nki_hf
from nki_hf import dispatch
from nki_hf.adapters import decision, layouts, masks, model_classes, recorded_weights
from nki_hf.adapters.keys import Keys
from nki_hf.adapters.packed import attend, mixed, pieces, segments
from nki_hf.flash_attn import flash_attn_varlen_func
from nki_hf.kernels import registry
from nki_hf.kernels.flash_backward import plan as backward_plan
from nki_hf.kernels.flash_const_max import plan as const_max_plan
from nki_hf.kernels.flash_decode import plan as decode_plan
from nki_hf.kernels.flash_prefill import plan as prefill_plan

__all__ = ["PLANS", "classes", "decisions", "equal", "layers", "packs", "read_masks", "restarts", "stacks", "told_keys"]
PLANS = (
    (backward_plan, "plan_backward"),
    (const_max_plan, "plan_const_max"),
    (decode_plan, "plan_decode"),
    (prefill_plan, "plan_prefill"),
)


def forget_decisions():
    for each in (dispatch.decide, decision._decided, decision._decided_gradients, registry._load):
        each.cache_clear()
    for plan, name in PLANS:
        getattr(plan, name).cache_clear()


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def packed_case():
    """Two sequences, as FlashAttention's function is told of them; against each of them alone in float64."""
    q, k, v = (drawn(seed, 40, 2, 8) for seed in range(3))
    starts = torch.tensor([0, 25, 40], dtype=torch.int32)
    expected = torch.empty(40, 2, 8, dtype=torch.float64)
    for first, last in ((0, 25), (25, 40)):
        expected[first:last] = exact(*(each[first:last].transpose(0, 1) for each in (q, k, v))).transpose(0, 1)

    def call():
        return flash_attn_varlen_func(q, k, v, starts, starts, 25, 25, causal=True)

    return call, expected


def exact(q, k, v):
    scores = q.double() @ k.double().transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v.double()


def forget_packs():
    for each in (pieces.cut, attend._indices):
        each.cache_clear()


def packs():
    call, expected = packed_case()
    return forget_packs, call, lambda found: torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-5)


def told_keys():
    """The sequences that a mask's bounds tell: those of the mask that made them."""
    made = {}

    def forget():
        lo = torch.tensor([[0] * 4 + [4] * 3 + [7] * 2], dtype=torch.int32)
        made["keys"] = Keys(lo=lo, hi=torch.arange(1, 10, dtype=torch.int32)[None], inside=True)

    def right(found):
        assert (found.cu_q, found.cu_kv, found.window, found.ahead) == ((0, 4, 7, 9), (0, 4, 7, 9), None, 1)

    return forget, lambda: segments.segments_of_bounds(made["keys"], 9), right


def decisions():
    q, k, v = (drawn(seed, 1, 2, 33, 16) for seed in range(3))
    want = exact(q, k, v)

    def call():
        leaves = [each.clone().requires_grad_() for each in (q, k, v)]
        out = nki_hf.attention(*leaves, causal=True)
        return out.detach(), *torch.autograd.grad(out.sum(), leaves)

    leaves = [each.double().requires_grad_() for each in (q, k, v)]
    gradients = torch.autograd.grad(exact(*leaves).sum(), leaves)

    def right(found):
        for one, other in zip(found, (want, *gradients), strict=True):
            torch.testing.assert_close(one.double(), other, rtol=5e-5, atol=5e-5)

    return forget_decisions, call, right


def layers():
    """Layers of passes over a mask on a device: the second pass must see what the mask holds, which no version tells."""
    made = {}
    two = [object(), object()]

    def forget():
        masks._passes.clear()
        layouts._kept.clear()
        made["mask"] = torch.zeros(1, 1, 5, 5, dtype=torch.float64)  # converted, and so copied

    def one_pass():
        made["mask"].data.add_(1.0)
        q = drawn(0, 1, 2, 5, 8)
        return [masks._unread(made["mask"], q, 5, cut=False, layer=layer).bias for layer in two]

    def call():
        return one_pass(), float(made["mask"][0, 0, 0, 0])

    def right(found):
        biases, value = found
        assert all(float(bias[0, 0, 0, 0]) == value for bias in biases)

    return forget, call, right


def read_masks():
    seen = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
    q = drawn(0, 1, 2, 6, 8)

    def forget():
        masks._seen.clear()
        masks._causal.cache_clear()

    def call():
        return masks.read_mask(seen, q=q, seqlen_kv=6, causal=False), masks.read_mask(None, q=q, seqlen_kv=6, causal=True)

    def right(found):
        for keys in found:
            assert torch.equal(keys.dense(6, 6, q.device).expand_as(seen), seen)

    return forget, call, right


def restarts():
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    keys = Keys(ahead=1)

    told = []

    def forget():
        mixed._latest, mixed._warned = (lambda: None, None, []), False
        told.clear()

    def call():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                mixed.warn_if_mixed(positions, keys, 5, lambda: "layer")
            finally:
                told.extend(seen)
        return len(told), mixed._restarts(positions)

    def right(found):  # the warning may come twice, but it is not lost
        warned, rows = found
        assert warned > 0
        assert rows == [(0, 3)]

    return forget, call, right


def classes():
    from transformers import LlamaConfig, OPTConfig

    asked = {}

    def forget():
        model_classes._declining.clear()
        for name in ("_names_blocks", "_asks", "_passes_on", "_file_like_sdpa", "_file_asks"):
            getattr(model_classes, name).cache_clear()
        asked["module"] = torch.nn.Linear(1, 1)

    def call():
        return [
            (model_classes.declines_sdpa(kind), model_classes.routing(kind), model_classes.overlays_blocks(kind))
            for kind in (LlamaConfig, OPTConfig)
        ]

    forget()
    once = call()  # by other tests known to be right
    return forget, call, lambda found: equal(found, once)


def equal(found, wanted):
    assert found == wanted


def stacks():
    def forget():
        recorded_weights._kinds.clear()
        recorded_weights._held.clear()

    def holder():
        pass

    def call():
        return recorded_weights._look(holder.__code__), {*recorded_weights._kinds} - {*recorded_weights._held}

    return forget, call, lambda found: equal(found, (0, set()))
