"""Hints and counters of a simulated time: each rule finds what was planted, and its advice saves no more than it says."""

from __future__ import annotations

import pytest

from nki_hf.tools.judging.record import Time
from nki_hf.tools.judging.timetable import rows

TASK = """
from nki_hf.tasks import FLOAT, Task
TASK = Task(name="work", about="", arrays=lambda n: {"x": ((128, n), FLOAT), "w": ((128, 128), FLOAT)},
            reference=lambda x, w: x, flops=lambda n: n, check=(512,), at=(4096,), dtype="DTYPE")
"""

KERNEL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def work(x, w):
    size = x.shape[1]
    out = nl.ndarray((128, size), x.dtype, buffer=nl.shared_hbm)
    xs = nl.ndarray((128, size), x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=xs, src=x)
    ws = nl.ndarray((128, 128), w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=ws, src=w)
    done = nl.ndarray((128, size), x.dtype, buffer=nl.sbuf)
    total = nl.ndarray((128, 1), nl.float32, buffer=nl.sbuf)
BODY
    nisa.dma_copy(dst=out, src=done)
    return out
"""

LOOP = """
    for turn in range(4):
        for c in range(0, size, 512):
            part = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            nisa.nc_matmul(dst=part, stationary=ws, moving=xs[:, c : c + 512])
            EVICTION
"""

PLANTED = {
    # rule: (element type, body, text of the line, what the advice makes of the body)
    "idle engine": (
        "bfloat16",
        LOOP.replace("EVICTION", "nisa.tensor_copy(dst=done[:, c : c + 512], src=part, engine=nisa.engine.vector)"),
        "nisa.tensor_copy(",
        ("engine=nisa.engine.vector", "engine=nisa.engine.scalar if c % 1024 else nisa.engine.vector"),
    ),
    "idle engine: a scale on the way": (
        "bfloat16",
        LOOP.replace("EVICTION", "nisa.tensor_scalar(dst=done[:, c : c + 512], data=part, op0=nl.multiply, operand0=0.5)"),
        "nisa.tensor_scalar(",
        (
            "nisa.tensor_scalar(dst=done[:, c : c + 512], data=part, op0=nl.multiply, operand0=0.5)",
            "(nisa.tensor_scalar(dst=done[:, c : c + 512], data=part, op0=nl.multiply, operand0=0.5) if c % 1024 else "
            "nisa.activation(dst=done[:, c : c + 512], op=nl.copy, data=part, scale=0.5))",
        ),
    ),
    "exp and sum apart": (
        "float32",
        "    for turn in range(8):\n        nisa.activation(dst=done, op=nl.exp, data=xs)\n"
        "        nisa.tensor_reduce(dst=total, op=nl.add, data=done, axis=1)\n",
        "nisa.tensor_reduce(",
        (
            "nisa.activation(dst=done, op=nl.exp, data=xs)\n"
            "        nisa.tensor_reduce(dst=total, op=nl.add, data=done, axis=1)",
            "nisa.activation_reduce(dst=done, op=nl.exp, data=xs, reduce_op=nl.add, reduce_res=total)",
        ),
    ),
    "float32 matmul": (
        "float32",
        LOOP.replace("EVICTION", "if turn == 3: nisa.tensor_copy(dst=done[:, c : c + 512], src=part)"),
        "nisa.nc_matmul(",
        None,
    ),
    "loads inside the loop": (
        "bfloat16",
        "    for turn in range(8):\n        nisa.dma_copy(dst=xs, src=x)\n        nisa.tensor_copy(dst=done, src=xs)\n",
        "        nisa.dma_copy(dst=xs, src=x)",
        ("        nisa.dma_copy(dst=xs, src=x)\n", ""),
    ),
    "short DMA rows": (
        "bfloat16",
        "    for c in range(0, size, 64):\n        nisa.dma_copy(dst=done[:, c : c + 64], src=x[:, c : c + 64])\n",
        "src=x[:, c : c + 64])",
        (
            "    for c in range(0, size, 64):\n        nisa.dma_copy(dst=done[:, c : c + 64], src=x[:, c : c + 64])\n",
            "    nisa.dma_copy(dst=done, src=x)\n",
        ),
    ),
    "narrow tiles": (
        "bfloat16",
        LOOP.replace("512", "64").replace("EVICTION", "if turn == 3: nisa.tensor_copy(dst=done[:, c : c + 64], src=part)"),
        "nisa.nc_matmul(",
        None,
    ),
    "one semaphore": (
        "bfloat16",
        "    for turn in range(8):\n        nisa.activation(dst=done, op=nl.exp, data=xs)\n"
        "        nisa.tensor_scalar(dst=xs, data=done, op0=nl.multiply, operand0=0.5)\n",
        "",
        None,
    ),
}


@pytest.fixture
def timed(tmp_path):
    def time(dtype: str, body: str, size: int = 4096):
        kernel, task = tmp_path / "kernel.py", tmp_path / "task.py"
        kernel.write_text(KERNEL.replace("BODY", body))
        task.write_text(TASK.replace("DTYPE", dtype))
        (row,) = rows(str(kernel), str(task), (size,), ("trn2",), lnc=1, window=64)
        return row, kernel.read_text().splitlines()

    return time


@pytest.mark.parametrize("rule", PLANTED)
def test_each_rule_finds_what_was_planted(timed, rule):
    dtype, body, text, advice = PLANTED[rule]
    row, lines = timed(dtype, body)
    rule = rule.partition(":")[0]
    found = [hint for hint in row["hints"] if hint["rule"] == rule]
    assert found, [(hint["rule"], hint["line"]) for hint in row["hints"]]
    hint = found[0]
    assert text in lines[hint["line"] - 1]
    assert 0 < hint["gain_us"] <= row["us"]
    if advice is not None:
        assert advice[0] in body
        better, _ = timed(dtype, body.replace(*advice))
        assert 0 < row["us"] - better["us"] <= 1.1 * hint["gain_us"]
        assert not [other for other in better["hints"] if other["rule"] == rule and other["gain_us"] > hint["gain_us"] / 2]


def test_a_kernel_without_these_faults_has_none_of_the_hints(timed):
    row, _ = timed("bfloat16", "    nisa.tensor_copy(dst=done, src=xs)\n")
    assert {hint["rule"] for hint in row["hints"]} <= {"one semaphore"}  # it must wait for what it loads


def test_what_run_time_indices_choose_is_not_loaded_again(timed):
    """Each turn loads other columns; a loop that is unrolled and loads the same ones is told so."""
    load = "nisa.dma_copy(dst=part, src=x.ap([[size, 128], [1, 512]], scalar_offset=c, indirect_dim=1))"
    body = "    part = nl.ndarray((128, 512), x.dtype, buffer=nl.sbuf)\n"
    turns = (
        f"    for c in nl.dynamic_range(0, size, 512):\n        {load}\n        nisa.tensor_copy(dst=done[:, :512], src=part)\n"
    )
    again = turns.replace("nl.dynamic_range(0, size, 512)", "range(8)").replace(load, "nisa.dma_copy(dst=part, src=x[:, :512])")
    row, lines = timed("bfloat16", body + turns)
    assert "loads inside the loop" not in {hint["rule"] for hint in row["hints"]}
    assert "loads inside the loop" in {hint["rule"] for hint in timed("bfloat16", body + again)[0]["hints"]}
    turn = next(step for step in row["path"] if step["opcode"] == "loop_turn")
    assert turn["file"].endswith("kernel.py")  # of the kernel, not of what plays it
    assert "nl.dynamic_range" in lines[turn["line"] - 1]


def test_memory_that_overflows_names_its_holder(timed):
    body = "    big = nl.ndarray((128, size * 4), nl.float32, buffer=nl.sbuf)\n    nisa.memset(dst=big, value=1.0)\n"
    body += body.replace("big", "other").replace("size * 4", "size * 3")
    body += "    nisa.tensor_copy(dst=done, src=xs)\n    nisa.tensor_copy(dst=big[:, :size], src=done)\n"
    body += "    nisa.tensor_copy(dst=other[:, :size], src=done)\n"
    row, lines = timed("bfloat16", body, 8192)
    hint = next(hint for hint in row["hints"] if hint["rule"] == "spills")
    assert "big = nl.ndarray" in lines[hint["line"] - 1]
    assert "SBUF" in hint["text"].upper()
    assert row["spills"]


def test_counters_have_the_names_of_the_profiler_and_count_by_hand(timed):
    """4 turns x 8 matmuls of [128, 128] x [128, 512] in bfloat16; x, w and out cross HBM once."""
    row, _ = timed("bfloat16", PLANTED["idle engine"][1])
    Time.model_validate({key: value for key, value in row.items() if key not in ("kernel", "task")} | {"sentence": ""})
    counters = row["counters"]
    assert set(counters) == {
        "hbm_read_bytes", "hbm_write_bytes", "sbuf_read_bytes", "sbuf_write_bytes", "psum_read_bytes", "psum_write_bytes",
        "spill_save_bytes", "spill_reload_bytes", "hardware_flops", "transpose_flops", "mm_arithmetic_intensity",
        "hfu_estimated_percent", "mfu_estimated_percent", "tensor_engine_active_time_percent",
        "vector_engine_active_time_percent", "scalar_engine_active_time_percent", "gpsimd_engine_active_time_percent",
    }  # fmt: skip
    flops = 2 * 4 * 8 * 128 * 128 * 512
    moved = 2 * 128 * 4096
    assert counters["hbm_read_bytes"] == moved + 2 * 128 * 128
    assert counters["hbm_write_bytes"] == moved
    assert counters["psum_write_bytes"] == counters["psum_read_bytes"] == 4 * 4 * 128 * 4096
    assert counters["hardware_flops"] == flops
    assert counters["transpose_flops"] == counters["spill_save_bytes"] == 0
    assert counters["mm_arithmetic_intensity"] == pytest.approx(flops / (2 * moved + 2 * 128 * 128))
    assert all(0 <= counters[f"{engine}_engine_active_time_percent"] <= 100 for engine in ("tensor", "vector", "scalar"))


def test_the_time_has_its_floors_and_the_band_of_its_family(timed):
    row, _ = timed("bfloat16", "    nisa.tensor_copy(dst=done, src=xs)\n")
    assert row["us"] >= row["least_us"]
    assert all(row["us"] >= floor for floor in row["floors_us"].values())
    assert row["band"] == "work, trn2: no measured rows"
