"""A mask is read once, and again whenever it may hold other values: however they were written, whatever memory it has."""

import numpy as np
import pytest
import torch
from mask_forms import causal_mask, q_of, says

from nki_hf.adapters.keys import Keys
from nki_hf.adapters.masks import read_mask


def test_a_mask_is_read_once_and_again_after_a_change(monkeypatch):
    from nki_hf.adapters import mask_values

    scans = []
    real = mask_values._runs
    monkeypatch.setattr(mask_values, "_runs", lambda visible: scans.append(1) or real(visible))
    mask = causal_mask(7, 7).clone()
    for _ in range(3):
        read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
    assert len(scans) == 1
    mask[..., 3, :] = False
    assert says(read_mask(mask, q=q_of(), seqlen_kv=7, causal=False), mask, 7)
    assert len(scans) == 2


WRITES = {
    "in place": lambda mask, values: mask.copy_(values),
    "through .data": lambda mask, values: mask.data.copy_(values),
    "through a shared array": lambda mask, values: np.copyto(mask.numpy(), values.numpy()),
    "through detach": lambda mask, values: mask.detach().numpy().__setitem__(Ellipsis, values.numpy()),
    "without versions": lambda mask, values: (
        torch.autograd._unsafe_preserve_version_counter(mask).__enter__() or mask.copy_(values)
    ),
    "by set_data": lambda mask, values: setattr(mask, "data", values.clone()),
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float16])
@pytest.mark.parametrize("way", WRITES)
def test_every_way_of_writing_a_mask_is_seen(way, dtype):
    def made(visible):
        if dtype == torch.bool:
            return visible.clone()
        return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)

    window = causal_mask(7, 7) & ~causal_mask(7, 7, -3)
    mask = made(torch.ones(1, 1, 7, 7, dtype=torch.bool))
    assert read_mask(mask, q=q_of(), seqlen_kv=7, causal=False) == Keys()
    for values in (causal_mask(7, 7), window, causal_mask(7, 7)):
        WRITES[way](mask, made(values))
        for _ in range(2):
            assert says(read_mask(mask, q=q_of(), seqlen_kv=7, causal=False), values, 7)


def test_a_large_mask_is_compared_to_its_last_element():
    mask = torch.ones(2, 1, 2100, 2100, dtype=torch.bool)
    assert read_mask(mask, q=q_of(2, seqlen_q=2100), seqlen_kv=2100, causal=False) == Keys()
    mask.data[1, 0, 2099, 2099] = False
    keys = read_mask(mask, q=q_of(2, seqlen_q=2100), seqlen_kv=2100, causal=False)
    assert keys.hi[1, 2099] == 2099
    assert int((keys.hi == 2100).sum()) == 2 * 2100 - 1


def test_a_mask_of_inference_mode_is_read_once_too(monkeypatch):
    from nki_hf.adapters import mask_values

    scans = []
    real = mask_values._runs
    monkeypatch.setattr(mask_values, "_runs", lambda visible: scans.append(1) or real(visible))
    with torch.inference_mode():
        mask = causal_mask(7, 7).clone()
        for _ in range(28):
            assert read_mask(mask, q=q_of(), seqlen_kv=7, causal=False) == Keys(ahead=1)
    assert len(scans) == 1


def test_a_mask_that_was_read_can_be_freed():
    import gc
    import weakref

    makers = (lambda: causal_mask(7, 7).clone(), lambda: torch.randn(1, 2, 7, 7), lambda: torch.rand(1, 1, 7, 7) > 0.5)
    for make in makers:
        mask = make()
        read_mask(mask, q=q_of(), seqlen_kv=7, causal=False)
        alive = weakref.ref(mask)
        del mask
        gc.collect()
        assert alive() is None


def test_values_are_not_read_while_compiling(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    mask = causal_mask(7, 7)
    assert read_mask(mask, q=q_of(), seqlen_kv=7, causal=False).bias is not None


def _replaced(mask, other):
    mask.data = other


def _set(mask, other):
    mask.set_(other)


def _grown(mask, other):
    with torch.no_grad():
        mask.resize_(1, 1, 40, 40).copy_(other.expand(1, 1, 40, 40))


@pytest.mark.parametrize("change", [_replaced, _set, _grown])
def test_a_mask_that_gets_other_memory_is_read_again(change):
    mask = torch.ones(1, 1, 40, 40, dtype=torch.bool).tril()
    other = torch.ones(1, 1, 40, 40, dtype=torch.bool).triu()
    q = torch.zeros(1, 1, 40, 8)
    for _ in range(2):
        read_mask(mask, q=q, seqlen_kv=40, causal=False)
    change(mask, other)
    for _ in range(2):
        keys = read_mask(mask, q=q, seqlen_kv=40, causal=False)
        assert torch.equal(keys.dense(40, 40, mask.device), other)
