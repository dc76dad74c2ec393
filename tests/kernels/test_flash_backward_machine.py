"""flash_backward on the machine: large scores, several query sections, races, memory, speed, planted faults."""

import importlib
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import backward_cases
import numpy as np
import pytest
from backward_bar import assert_right, errors
from backward_cases import dominated, forward, gradients, problem, upstream

from nki_hf.chips import CHIPS, get_chip
from nki_hf.kernels import flash_backward, reference
from nki_hf.kernels.flash_backward.plan import backward_reasons, plan_backward
from nki_hf.kernels.flash_backward.steps import KEYS, order_of_work, tiles_of
from nki_hf.observers.races import races
from nki_hf.problem import Mask
from nki_hf.sim import SimOptions
from nki_hf.testing import attention_inputs
from nki_hf.timing.schedule import schedule

FOLDER = Path(flash_backward.__file__).parent


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1e4, 1e6, 1e8])
def test_errors_do_not_grow_with_the_scores(dtype, size):
    case = problem(dtype=dtype, seqlen_kv=500, head_dim=32, head_dim_v=32)
    inputs = attention_inputs(case)
    factor = (size / case.head_dim**0.5 / case.scale) ** 0.5
    large = {name: (getattr(inputs, name).astype(np.float32) * factor).astype(inputs.q.dtype) for name in ("q", "k")}
    inputs = replace(inputs, **large)
    dout, _ = upstream(inputs, with_lse=False)
    got = gradients(inputs, dout, forward_results=forward(inputs))
    found = errors(inputs, got, dout, None)
    unit = float(np.finfo(np.float32).eps) if dtype == "float32" else 2.0**-7
    for name, (error, plain, value, _) in found.items():
        # A gradient that vanishes in exact arithmetic is a rest of dprobs - delta, both as large as the terms of a row.
        terms = 0.0 if name == "dv" else unit * factor * case.scale * case.head_dim_v**0.5
        assert error <= 1.5 * plain + unit * value + terms, (name, error, plain, value)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e8])
def test_equal_keys_share_a_row_whatever_its_lse(size):
    # Two equal keys have half of the row each; lse = score + log 2 says so only while the score is small.
    case = problem(seqlen_q=64, seqlen_kv=128, head_dim=16, head_dim_v=16)
    inputs = attention_inputs(case)
    k = inputs.k.copy()
    k[:, :, 1::2] = k[:, :, 0::2]
    inputs = replace(inputs, q=inputs.q * np.float32(size), k=k)
    dout, _ = upstream(inputs, with_lse=False)
    got = gradients(inputs, dout)
    want = reference.attention_gradients(case, inputs.q, inputs.k, inputs.v, dout)
    assert np.abs(got["dv"] - want.dv).max() <= 1e-5 * max(1.0, np.abs(want.dv).max()) + 1e-3 * (size == 1e4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
def test_equal_keys_share_a_row_in_16_bits_up_to_the_score_that_the_docs_name(size, dtype):
    case = problem(dtype=dtype, seqlen_q=100, seqlen_kv=50, head_dim=16, head_dim_v=16, softmax_scale=size / 4)
    drawn = attention_inputs(case)
    inputs = replace(drawn, k=np.broadcast_to(drawn.k[:, :, :1], drawn.k.shape).copy())
    dout, _ = upstream(inputs, with_lse=False)
    dout = (dout.astype(np.float32) / max(1.0, size)).astype(dout.dtype)  # float16 ends at 65,504
    assert_right(inputs, gradients(inputs, dout), dout)


def test_a_bias_of_the_lowest_number_leaves_equal_weights():
    case = problem(seqlen_q=64, seqlen_kv=128, mask=Mask(bias="additive", bias_rows=True), dtype="bfloat16")
    inputs = attention_inputs(case)
    bias = inputs.bias.copy()
    bias[:, :, 10:20] = np.finfo(np.float32).min
    inputs = replace(inputs, bias=bias)
    dout, _ = upstream(inputs, with_lse=False)
    got = gradients(inputs, dout)
    # Every key of rows 10 to 19 weighs 1/128 there, so dv is what those rows' mean adds.
    other = dout.copy()
    other[:, :, 10:20] = 0
    change = got["dv"].astype(np.float32) - gradients(inputs, other)["dv"].astype(np.float32)
    expected = dout[:, :, 10:20].astype(np.float32).sum((1, 2)) / 128
    assert np.abs(change - expected[:, None, None]).max() <= 0.04


@pytest.mark.parametrize("recompute", [False, True])
def test_sections_of_queries_hand_dk_and_dv_on(recompute):
    case = problem(dtype="bfloat16", seqlen_q=500, seqlen_kv=600, mask=Mask(ahead=1, q_offset=100), sink=True)
    inputs = attention_inputs(case)
    dout, dlse = upstream(inputs)
    plan = replace(plan_backward(case, get_chip("trn2")), section=3, recompute=recompute)
    assert_right(inputs, gradients(inputs, dout, dlse, plan=plan), dout, dlse)


@pytest.mark.parametrize("mask", [Mask(), Mask(ahead=1), Mask(ahead=1, bias="additive")], ids=["full", "causal", "bias"])
@pytest.mark.parametrize("heads", [(2, 2), (3, 3), (4, 1)])
def test_two_cores_do_not_race(mask, heads):
    case = problem(dtype="bfloat16", num_heads_q=heads[0], num_heads_kv=heads[1], mask=mask, sink=True)
    inputs = attention_inputs(case)
    dout, dlse = upstream(inputs)
    launched, _ = backward_cases.run(inputs, dout, dlse, lnc=2)
    assert races(launched.events) == []


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"dtype": "bfloat16", "mask": Mask(bias="additive")}], ids=str)
def test_a_part_of_the_rows_keys_is_refused_where_statistics_are_found_from_the_calls_own(options):
    case = problem(**options)
    assert backward_reasons(case, get_chip("trn2")) == ()
    assert [reason.field for reason in backward_reasons(replace(case, row_part=True), get_chip("trn2"))] == ["row_part"]


def test_hidden_tiles_have_no_steps():
    case = problem(num_heads_q=1, seqlen_q=1024, seqlen_kv=1024, mask=Mask(ahead=1))
    spans = plan_backward(case, get_chip("trn2")).spans
    tiles = tiles_of(0, spans, (1, 1, 1024, 64), (1, 1, 1024, 64))
    _, steps = order_of_work(0, tiles, 0, len(tiles), (1, 1, 1024, 64), 512, False)
    assert sum(step["width"] for step in steps) == 128 * sum(range(1, 9))
    window = replace(case, mask=Mask(ahead=1, window=128))
    spans = plan_backward(window, get_chip("trn2")).spans
    tiles = tiles_of(0, spans, (1, 1, 1024, 64), (1, 1, 1024, 64))
    _, steps = order_of_work(0, tiles, 0, len(tiles), (1, 1, 1024, 64), 512, False)
    assert sum(step["width"] for step in steps) == 128 * (1 + 2 * 7)


def test_every_key_of_the_kernels_dictionaries_is_named():
    import re

    used = set()
    for path in FOLDER.glob("*.py"):
        used |= set(re.findall(r'\b(?:env|run|tile|block|step|work)\["(\w+)"\]', path.read_text()))
    assert used <= {key for keys in KEYS.values() for key in keys}


def us_per_block(seqlen, chip, mask=None):
    """Simulated microseconds per block of 128 queries x 512 keys, and the number of blocks."""
    case = problem(
        num_heads_q=1, seqlen_q=seqlen, seqlen_kv=seqlen, head_dim=128, head_dim_v=128, dtype="bfloat16", mask=mask or Mask()
    )
    events = backward_cases.events(case, get_chip(chip))
    blocks = sum((last - first) / 512 for first, last, _, _ in plan_backward(case, get_chip(chip)).spans)
    return schedule(events, get_chip(chip), window=None).total_ns / 1e3 / blocks, blocks


def test_a_block_takes_less_than_two_microseconds_on_trn2():
    assert us_per_block(4096, "trn2")[0] <= 1.8


@pytest.mark.slow
def test_long_calls_take_less_than_two_microseconds_a_block_on_trn2():
    assert us_per_block(8192, "trn2")[0] <= 1.8


def test_causal_time_grows_with_the_visible_area():
    full, all_blocks = us_per_block(4096, "trn2")
    causal, visible = us_per_block(4096, "trn2", Mask(ahead=1))
    assert visible / all_blocks < 0.52
    assert causal * visible <= 0.7 * full * all_blocks


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_memory_does_not_grow_with_the_sequence(chip, dtype):
    limit = get_chip(chip).sbuf_partition_bytes
    for seqlen in (1024, 16384, 131072):
        case = problem(
            num_heads_q=8, seqlen_q=seqlen, seqlen_kv=seqlen, head_dim=256, head_dim_v=256, dtype=dtype, mask=Mask(ahead=1)
        )
        assert backward_reasons(case, get_chip(chip)) == ()
        assert plan_backward(case, get_chip(chip)).sbuf_bytes <= limit


def test_a_large_section_fits_sbuf():
    # 32 query tiles of head_dim 256 in float32 do not fit together: the plan makes sections, and the run is within the limits.
    case = problem(num_heads_q=4, seqlen_q=1200, seqlen_kv=256, head_dim=256, head_dim_v=256)
    plan = plan_backward(case, get_chip("trn2"))
    assert plan.section < 40
    backward_cases.run_shapes(case, SimOptions(chip=get_chip("trn2"), values=False))


# ---- planted faults ---------------------------------------------------------------------------------------------------

_ADDS = "moving=grads[0:rows, slot, 0:width_v],\n            accumulate=begun[first + c],"
_CENTRED = "score_gradients(env, tile, work, probs, dscores)"
_NOT_CENTRED = 'nisa.tensor_tensor(dst=dscores, data1=work["dprobs"], data2=probs, op=nl.multiply)'
FAULTS = {
    "dq without the scale": ("tiles.py", 'op1=nl.multiply, operand1=env["scale"]', "op1=nl.bypass, operand1=1.0", "dq"),
    "dq of the last block only": ("stages.py", 'if tile["dq"] == None:', "if True:", "dq"),
    "dk without the scale": ("key_blocks.py", 'block["dk"], env["scale"], "dk"', 'block["dk"], 1.0, "dk"', "dk"),
    "dk from other queries": ("stages.py", "queries[0:rows, slot, 0:head_dim]", "queries[0:rows, 0, 0:head_dim]", "dk"),
    "dv of the last rows": ("stages.py", _ADDS, _ADDS.replace("begun[first + c]", "False"), "dv"),
    "no delta": ("scores.py", 'operand0=tile["delta"]', "operand0=0.0", "dq"),
    "no delta in float32": ("scores.py", 'operand0=tile["centre"]', "operand0=0.0", "dq"),
    "no gradient of lse": ("tiles.py", 'if run["dlse"] != None:', "if False:", "dq"),
    "no gradient of lse in float32": ("scores.py", 'operand1=tile["dlse"]', "operand1=0.0", "dq"),
    "sign of the sink's gradient": ("kernel.py", "op0=nl.multiply, operand0=-1.0)", "op0=nl.multiply, operand0=1.0)", "d_sink"),
    "half of the sink's rows": ("kernel.py", "for width in (64, 32,", "for width in (32,", "d_sink"),
    "no rest of out": ("tiles.py", 'if run["out_rest"] != None:', "if False:", "dq"),
    "no power of the row sum": ("scores.py", 'operand0=tile["power"], op1', "operand0=1.0, op1", "dq"),
    "dq without what is left of it": ("tiles.py", 'operand0=tile["left"], op1', "operand0=1.0, op1", "dq"),
    "dk without what is left of it": ("tiles.py", '_scale_rows(run, run["q"])', "pass", "dk"),
    "dv without what is left of it": ("tiles.py", '_scale_rows(run, run["dout"])', "pass", "dv"),
    "sink's gradient of one tile": ("tiles.py", "op1=nl.add, operand1=place)", "op1=nl.bypass, operand1=place)", "d_sink"),
    "bias's gradient of one head": ("bias_gradient.py", "data1=place, data2=dscores", "data1=dscores, data2=dscores", "d_bias"),
    "bias's gradient without delta": ("bias_gradient.py", _CENTRED, _NOT_CENTRED, "d_bias"),
    "no slope of the cap": ("stages.py", 'work["slope"], op=nl.multiply', 'work["slope"], op=nl.bypass', "dq"),
}
"""What it is, file, right source, wrong source, and the gradient that must be found wrong."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path, monkeypatch):
    file, right, wrong, gradient = FAULTS[name]
    package = "faulty_" + name.replace(" ", "_").replace("'", "_")
    shutil.copytree(FOLDER, tmp_path / package)
    for path in (tmp_path / package).glob("*.py"):
        text = path.read_text().replace("nki_hf.kernels.flash_backward", package)
        if path.name == file:
            assert right in text
            text = text.replace(right, wrong)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = importlib.import_module(f"{package}.kernel").flash_backward
    additive = gradient == "d_bias"
    case = problem(
        num_heads_q=4,
        num_heads_kv=2,
        seqlen_q=300,
        seqlen_kv=700,
        dtype="float32" if additive or "float32" in name else "bfloat16",
        softmax_scale=0.4,
        sink=not additive,
        softcap=3.0 if "cap" in name else None,
        mask=Mask(bias="additive") if additive else Mask(ahead=1, q_offset=400),
    )
    inputs = attention_inputs(case)
    if "rest" in name:
        inputs = dominated(inputs, 0.99)
    dout, dlse = upstream(inputs)
    assert_right(inputs, gradients(inputs, dout, dlse), dout, dlse)
    with pytest.raises(AssertionError, match=gradient):
        assert_right(inputs, gradients(inputs, dout, dlse, kernel=kernel), dout, dlse)
    for module in [item for item in sys.modules if item.startswith(package)]:
        del sys.modules[module]
