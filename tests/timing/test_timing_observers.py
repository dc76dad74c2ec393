"""What a schedule says: the parts add up, the critical path is the latency, gains are gains, extrapolation holds."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from nki_hf.chips import get_chip
from nki_hf.chips.measurements import error_band
from nki_hf.cli import app
from nki_hf.observers.gains import gains, quick_gains
from nki_hf.observers.report import facts
from nki_hf.observers.timing import critical_path, engine_times, floors_ns, roofline, traffic
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.timing.banks import fewer_banks
from nki_hf.timing.excerpt import excerpt
from nki_hf.timing.lookahead import Lookahead
from nki_hf.timing.schedule import schedule
from nki_hf.timing.window_order import run_in_window
from nki_hf.timing.workload import prepare
from nki_hf.tools.bench_rows import modelled_rows, run
from nki_hf.tools.latency import attention_us, eager_like_us
from nki_hf.tools.modelled import window_of
from nki_hf.tools.shape import problem_of
from nki_hf.tools.subjects import attention_events, events_of
from nki_hf.tools.unit_ends import unit_ends

CASES = [("v7", 1024, "trn1"), ("v11", 512, "trn1"), ("v3", 512, "trn2"), ("sd_baseline", 512, "trn3")]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)), scope="module")
def plan(request):
    name, size, chip = request.param
    return schedule(events_of(name, size, get_chip(chip)), get_chip(chip))


def test_active_waiting_and_idle_add_up_to_the_latency_on_every_engine(plan):
    rows = engine_times(plan)
    assert {row.engine for row in rows} >= {"tensor", "vector", "scalar"}
    for row in rows:
        assert row.active_ns >= 0
        assert min(row.waiting_ns.values()) >= 0
        assert row.idle_ns >= plan.chip.kernel_fixed_ns - 1e-6
        assert row.active_ns + sum(row.waiting_ns.values()) + row.idle_ns == pytest.approx(row.total_ns)
        assert row.total_ns == plan.total_ns


def test_active_time_is_the_sum_of_the_instructions(plan):
    trigger_ns = plan.chip.dma_trigger_ns
    for row in engine_times(plan):
        mine = [cost.busy_ns for event, cost in zip(plan.events, plan.work.costs, strict=True) if event.engine == row.engine]
        if row.engine == "sync":
            mine += [trigger_ns for event in plan.events if event.engine == "dma" and event.queue == "sync"]
        assert row.instructions == len(mine)
        assert row.active_ns == pytest.approx(sum(mine))


def test_the_critical_path_adds_up_to_the_latency(plan):
    steps = critical_path(plan)
    assert sum(step.ns for step in steps) == pytest.approx(plan.total_ns)
    assert all(step.ns >= 0 for step in steps)
    launch = next(step for step in steps if step.engine == "launch")
    assert launch.ns == pytest.approx(plan.chip.kernel_fixed_ns)


def test_dma_bytes_are_those_of_the_kernel():
    """v7: q, k, v in and out back, bfloat16 [128, 1024] each."""
    chip = get_chip("trn1")
    (row,) = traffic(schedule(events_of("v7", 1024, chip), chip))
    assert row.nbytes == row.hbm_bytes == 4 * 128 * 1024 * 2
    assert row.peak_bytes_per_ns == 272


def test_hbm_bytes_are_those_of_the_tensors_in_hbm_also_where_a_transfer_casts_or_stays_in_hbm():
    def kernel(x):
        tile = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=x)
        return out

    x = np.zeros((128, 2048), np.float32)
    chip = get_chip("trn2")
    scheduled = schedule(launch(kernel, (x,), options=SimOptions(chip=chip, values=False)).events, chip)
    (row,) = traffic(scheduled)
    assert row.hbm_bytes == x.nbytes + 2 * x.nbytes
    assert row.nbytes == 2 * x.nbytes
    assert scheduled.work.costs[0].payload_ns == pytest.approx(x.nbytes / (16 * 23))


def _behind_a_store(engine, window):
    """Scalar's copy, which needs nothing, stands behind a store of what Vector takes long to work out."""

    def kernel(x):
        out = nl.ndarray((128, 4096), nl.float32, buffer=nl.shared_hbm)
        late = nl.ndarray((128, 4096), nl.float32, buffer=nl.sbuf)
        other = nl.ndarray((128, 64), nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=late, value=1, engine=nisa.engine.vector)
        nisa.reciprocal(dst=late, data=late)
        nisa.dma_copy(dst=out, src=late, engine=engine)
        nisa.memset(dst=other, value=1, engine=nisa.engine.gpsimd)
        nisa.activation(dst=other, op=nl.copy, data=other)
        return out

    chip = get_chip("trn2")
    run = launch(kernel, (np.zeros((1, 1), np.float32),), options=SimOptions(chip=chip, values=False))
    scheduled = schedule(run.events, chip, window=window)
    of = {event.opcode: i for i, event in enumerate(scheduled.events)}
    return scheduled, of["reciprocal"], of["dma_copy"], of["activation"]


def test_a_trigger_in_scalars_queue_holds_what_is_behind_it_as_long_as_it_waits():
    plan, source, store, behind = _behind_a_store(nisa.engine.scalar, None)
    assert plan.start_ns[store] >= plan.done_ns[source]
    assert plan.start_ns[behind] == pytest.approx(plan.start_ns[store] + plan.chip.dma_trigger_ns)
    assert plan.cause[behind] == source
    assert sum(step.ns for step in critical_path(plan)) == pytest.approx(plan.total_ns)
    (scalar,) = (row for row in engine_times(plan) if row.engine == "scalar")
    assert scalar.active_ns == pytest.approx(plan.free_ns[behind] - plan.start_ns[behind])


@pytest.mark.parametrize(("engine", "window"), [("sync", None), ("sync", 64), ("scalar", 64)])
def test_a_trigger_elsewhere_or_one_that_the_compiler_may_move_does_not(engine, window):
    plan, source, _, behind = _behind_a_store(getattr(nisa.engine, engine), window)
    assert plan.start_ns[behind] < plan.done_ns[source]


def test_syncs_row_has_its_triggers_and_what_they_wait_for():
    plan = _behind_a_store(nisa.engine.sync, None)[0]
    (sync,) = (row for row in engine_times(plan) if row.engine == "sync")
    assert (sync.instructions, sync.active_ns) == (1, plan.chip.dma_trigger_ns)
    assert sync.active_ns + sum(sync.waiting_ns.values()) + sync.idle_ns == pytest.approx(plan.total_ns)


def test_roofline_counts_two_matmuls_and_no_transposes():
    chip = get_chip("trn2")
    point = roofline(schedule(events_of("v7", 1024, chip), chip))
    assert point.flops == 4 * 1024 * 1024 * 128
    assert point.intensity == point.flops / (4 * 128 * 1024 * 2)
    assert point.achieved_tflops < point.attainable_tflops <= point.peak_tflops == pytest.approx(78.6)


def test_what_bounds_the_kernel_gains_most():
    """v6 in float32 is bound by the Tensor engine on trn1; v3 by DMA."""
    chip = get_chip("trn1")
    v6, v3 = (gains(schedule(events_of(name, 1024, chip), chip)) for name in ("v6", "v3"))
    assert max(v6, key=v6.get) == "tensor"
    assert max(v3, key=v3.get) == "dma"


@pytest.mark.parametrize("name", ["v7", "v11"])
def test_a_gain_is_that_of_the_plans_own_banks_and_none_is_lost_by_it(name):
    """Each gain is one of a schedule with some number of banks, at most the best of them; a loss is the best of all."""
    chip = get_chip("trn2")
    scheduled = schedule(events_of(name, 1024, chip), chip)
    found = gains(scheduled)
    sizes = [None, *fewer_banks(scheduled.work)]
    assert scheduled.banks in sizes
    assert len(sizes) > 1
    _, examples = np.unique(scheduled.work.kind, return_index=True)
    for engine, gain in found.items():
        free = {cost: 0.0 for cost in ("busy_ns", "done_ns", "output_ns", "weight_ns", "lead_ns", "payload_ns", "tail_ns",
                                       "psum_ns", "sbuf_ns")}  # fmt: skip
        costs = [
            replace(cost, **free, table="") if scheduled.events[example].engine == engine else cost
            for cost, example in zip(scheduled.work.cost_of_kind, examples.tolist(), strict=True)
        ]
        if engine == "sync" and not any(event.engine == "sync" for event in scheduled.events):
            continue  # it only triggers
        work = replace(scheduled.work, cost_of_kind=costs)
        fixed = float(chip.kernel_fixed_ns)
        each = {
            banks: scheduled.total_ns - float(run_in_window(Lookahead(work, 64), banks).done.max()) - fixed for banks in sizes
        }
        assert gain == pytest.approx(each[scheduled.banks] if each[scheduled.banks] > 0 else max(each.values()), abs=1e-6)


ALIKE = [("flash_prefill", "trn1", 1, 512, 40, None)]
ALIKE += [
    pytest.param("flash_prefill", chip, 1, keys, heads, window, marks=pytest.mark.slow)
    for chip in ("trn1", "trn2", "trn3")
    for keys, heads, window in ((256, 3600, 8), (512, 1800, 64), (1024, 680, 64), (1024, 680, 256), (4096, 64, 64))
]


@pytest.mark.parametrize(("kernel", "chip", "lnc", "keys", "heads", "window"), ALIKE)
def test_extrapolated_heads_agree_with_the_full_schedule_within_1_percent(kernel, chip, lnc, keys, heads, window, monkeypatch):
    if (chip, window) == ("trn1", None):  # regular from the first few on
        monkeypatch.setattr("nki_hf.tools.latency._SETTLED", 1000)
    problem, machine = problem_of(f"hq={heads},hkv={heads},sq={keys},skv={keys},causal"), get_chip(chip)
    short = attention_us(problem, machine, lnc, window=window, budget=1500 if window is None else 20_000, kernel=kernel)
    full = attention_us(problem, machine, lnc, window=window, budget=None, kernel=kernel)
    assert full.extrapolated is None
    if short.extrapolated is None:  # a window that has not settled is scheduled as a whole
        assert window is not None
        assert short.us == full.us
    else:
        assert short.extrapolated[1] == heads
        assert short.us == pytest.approx(full.us, rel=0.01)


@pytest.mark.parametrize(
    ("kernel", "chip", "lnc", "keys"),
    [
        ("flash_const_max", "trn2", 1, 4096),
        ("flash_const_max", "trn2", 2, 4096),
        pytest.param("flash_prefill", "trn1", 1, 12_288, marks=pytest.mark.slow),
    ],
)
def test_long_heads_are_extrapolated_from_three(kernel, chip, lnc, keys, monkeypatch):
    if keys < 12_288:  # as regular as long ones
        monkeypatch.setattr("nki_hf.tools.latency._LONG", 100)
    problem, machine = problem_of(f"hq=8,hkv=8,sq={keys},skv={keys},causal"), get_chip(chip)
    short = attention_us(problem, machine, lnc, kernel=kernel)
    full = attention_us(problem, machine, lnc, budget=None, kernel=kernel)
    assert short.extrapolated == (3 * lnc, 8)
    assert short.us == pytest.approx(full.us, rel=0.01)


def test_a_unit_ends_with_its_last_store():
    """Of heads one after another, so that nothing of a head is stored after the next one's."""
    problem, chip = problem_of("hq=4,hkv=2,sq=512,skv=512,causal"), get_chip("trn1")
    scheduled = schedule(attention_events(problem, chip, kernel="flash_prefill"), chip, window=None)
    first, last = unit_ends(scheduled, problem, "flash_prefill", 1)
    stored = [
        (scheduled.done_ns[i], r)
        for i, e in enumerate(scheduled.events)
        for r in e.writes
        if r.buffer.shape == (1, 512, 4, 128)
    ]
    head = lambda region: region.offset // 128 % 4  # noqa: E731
    assert last == max(done for done, _ in stored)
    assert first == max(done for done, region in stored if head(region) < 2)


def test_units_whose_outputs_share_a_store_end_with_it():
    """flash_const_max stores short neighbouring heads together: 16 heads of 64 rows by fewer than 16 stores."""
    problem, chip = problem_of("hq=16,hkv=16,sq=64,skv=64,causal"), get_chip("trn2")
    scheduled = schedule(attention_events(problem, chip, kernel="flash_const_max"), chip, window=None)
    ends = unit_ends(scheduled, problem, "flash_const_max", 1)
    stores = {
        scheduled.done_ns[i] for i, e in enumerate(scheduled.events) for r in e.writes if r.buffer.shape == (1, 64, 16, 128)
    }
    assert len(ends) == 16 > len(stores)
    assert set(ends) <= stores
    assert max(ends) == max(stores)


def test_a_schedule_that_has_not_settled_is_not_extrapolated(monkeypatch):
    """Few units of 256 keys lead to nothing: from there on the count doubles, until all are scheduled if need be."""
    monkeypatch.setattr("nki_hf.tools.latency._SETTLED", 300)
    monkeypatch.setattr("nki_hf.tools.latency._DOUBT", 0.0)
    problem, chip = problem_of("hq=64,hkv=64,sq=256,skv=256,causal"), get_chip("trn1")
    found, whole = attention_us(problem, chip, budget=300), attention_us(problem, chip, budget=None)
    assert found.extrapolated is None
    assert found.us == whole.us
    assert found.instructions > whole.instructions


def test_two_cores_share_the_work():
    """Of many heads, so that what the first ones take until they overlap hardly counts."""
    problem, chip = problem_of("hq=64,hkv=64,sq=512,skv=512,causal"), get_chip("trn2")
    one, two = attention_us(problem, chip, 1), attention_us(problem, chip, 2)
    assert two.us < 0.7 * one.us
    events = attention_events(problem, chip, 2)
    assert {row.core for row in engine_times(schedule(events, chip))} == {0, 1}


def test_longer_sequences_and_more_heads_never_take_less():
    chip = get_chip("trn2")
    times = [attention_us(problem_of(f"sq={n},skv={n},causal"), chip).us for n in (128, 256, 512, 1024)]
    assert times == sorted(times)
    assert eager_like_us(problem_of("sq=512,skv=512"), chip) < eager_like_us(problem_of("hq=2,sq=512,skv=512"), chip)


def test_the_eager_like_rung_counts_the_scores_of_a_rectangle():
    """One query row over 4,096 keys is 4,096 scores, less than the smallest rung; 1,024 x 4,096 is 2,048 x 2,048."""
    chip = get_chip("trn1")
    us = lambda sq, skv: eager_like_us(problem_of(f"sq={sq},skv={skv}"), chip)  # noqa: E731
    assert us(1, 4096) == us(512, 512) == us(1, 1)
    assert us(1024, 4096) == us(4096, 1024) == us(2048, 2048)
    assert us(2048, 4096) - us(1024, 4096) == pytest.approx(us(1024, 4096) - chip.kernel_fixed_ns / 1e3)


def test_bench_rows_are_named_simulated_and_ordered_by_chip():
    problem = problem_of("hq=2,hkv=1,sq=512,skv=512,d=64,causal")
    rows = run(problem, window=64)
    assert [row["chip"] for row in rows] == ["trn1", "trn2", "trn3"]
    assert [row["band"] for row in rows] == [error_band("attention", row["chip"]) for row in rows]
    for row in modelled_rows(problem, 28):
        assert row["nki_us_simulated"] < row["eager_like_us_simulated"]
        assert row["nki_model_ms_simulated"] == pytest.approx(28 * row["nki_us_simulated"] / 1e3)
        assert row["nki_prompts_per_s_simulated"] == pytest.approx(1e3 / row["nki_model_ms_simulated"])


def test_the_bench_command_says_simulated():
    done = CliRunner().invoke(app, ["bench", "--shape", "sq=512,skv=512,causal", "--layers", "2", "--chip", "trn2"])
    assert done.exit_code == 0, done.output
    assert "simulated, not measured" in done.stdout
    assert "no figure here was measured" in done.stdout
    assert (
        " ".join(done.stdout.split()).count(f"error on measured rows: {error_band('attention', 'trn2')}") == 2
    )  # of each table
    rows = json.loads(CliRunner().invoke(app, ["bench", "--shape", "sq=512,skv=512,causal", "--json"]).stdout)
    assert all("us" not in key or "simulated" in key for row in rows for key in row)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "--shape", "hq=two"], "not a number"),
        (["bench", "--shape", "rows=3"], "'rows=3' is not known"),
        (["bench", "--shape", "sq=4,skv=4,d=512"], "head_dim"),
        (["report", "--order", "fast"], "order='fast' is not known"),
        (["correlate", "--write", "/proc/page.md"], "cannot be written"),
        (["report", "--chip", "trn9"], "trn1, trn2, trn3"),
        (["report", "--kernel", "v99"], "flash_prefill, flash_const_max"),
        (["report", "--kernel", "v7", "--seqlen", "700"], "a multiple of 512"),
        (["report", "--kernel", "v7", "--seqlen", "0"], "a multiple of 512"),
        (["report", "--kernel", "gemm_bf16", "--seqlen", "-512"], "a multiple of 1024"),
        (["report", "--kernel", "v7", "--shape", "sq=512,skv=512"], "takes --seqlen"),
        (["report", "--seqlen", "0"], "sq=0 is not a size"),
        (["report", "-o", "/nowhere/page.html"], "cannot be written"),
        (["trace", "-o", "/nowhere/a.pftrace"], "cannot be written"),
        (["trace", "-o", "a.txt"], ".pftrace, .png or .svg"),
        (["correlate", "--write", "/nowhere/page.md"], "cannot be written"),
        (["bench", "--shape", "sq=512,skv=0"], "skv=0 is not a size"),
        (["bench", "--shape", "sq=512,sq=1024"], "says sq twice"),
        (["bench", "--shape", "causal,causal"], "says causal twice"),
        (["bench", "--shape", "sq=512,skv=512", "--lnc", "0"], "lnc=0 is not possible on trn1: it is 1."),
        (["bench", "--shape", "sq=512,skv=512", "--lnc", "7", "--chip", "trn2"], "it is 1 or 2"),
        (["bench", "--shape", "sq=512,skv=512", "--lnc", "2", "--chip", "trn1"], "lnc=2 is not possible on trn1"),
        (["bench", "--shape", "sq=512,skv=512", "--layers", "0"], "layers=0"),
    ],
)
def test_wrong_use_exits_with_2_and_says_what_is_allowed(arguments, words):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert words in done.output


def test_shapes_in_words():
    problem = problem_of("b=2,hq=8,hkv=2,sq=16,skv=64,d=64,dv=32,window=24,softcap=50,dtype=float32,sink")
    assert (problem.batch, problem.group_size, problem.head_dim_v, problem.softcap, problem.sink) == (2, 4, 32, 50.0, True)
    assert problem.mask.interval(0, 64) == (25, 49)
    assert window_of("program") is None


@pytest.mark.slow
def test_dense_16_bit_matmuls_are_clocked_down_and_float32_ones_are_not():
    chip = get_chip("trn2")
    assert schedule(events_of("gemm_bf16", 8192, chip), chip).throttled
    assert not schedule(events_of("matmul_blocked", 2048, chip), chip).throttled
    assert not schedule(events_of("v7", 2048, chip), chip).throttled


@pytest.mark.parametrize(("name", "chip"), [("v7", "trn2"), ("v4", "trn1"), ("v8", "trn3")])
def test_gains_of_a_long_kernel_are_exact_for_its_limit_and_near_for_the_others(name, chip, monkeypatch):
    numbers = get_chip(chip)
    events = events_of(name, 2048, numbers)
    scheduled = schedule(events, numbers)
    exact = gains(scheduled)
    assert quick_gains(scheduled) == (exact, frozenset())  # a short one has no estimates
    monkeypatch.setattr("nki_hf.observers.gains.ESTIMATED_FROM", 0)
    found, estimated = quick_gains(scheduled)
    limit = max(floors_ns(scheduled), key=floors_ns(scheduled).get)
    assert estimated
    assert limit not in estimated
    for engine, ns in exact.items():
        if engine in estimated:
            assert abs(found[engine] - ns) < 0.1 * scheduled.total_ns
        else:
            assert found[engine] == ns
    rows = facts(scheduled, saved_ns=found, estimated=estimated)
    assert {row["engine"] for row in rows["engines"] if row["gain_estimated"]} == estimated - {"dma"}
    assert quick_gains(schedule(events, numbers, window=None))[1] == frozenset()  # program order is exact


def test_what_happens_outside_the_pieces_is_not_estimated(monkeypatch):
    """GpSimd works at the start alone, DMA at both ends, which are not in the pieces: their gains are the whole kernel's."""

    def kernel(data):
        out = nl.ndarray((128, 512), data.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=data)
        for _ in range(20):
            nisa.memset(dst=tile, value=1.0, engine=nisa.engine.gpsimd)
        for _ in range(200):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1.0, engine=nisa.engine.vector)
        nisa.dma_copy(dst=out, src=tile)
        return out

    chip = get_chip("trn2")
    run = launch(kernel, (np.zeros((128, 512), np.float32),), options=SimOptions(chip=chip, values=False))
    scheduled = schedule(run.events, chip)
    monkeypatch.setattr("nki_hf.observers.gains.ESTIMATED_FROM", 0)
    found, estimated = quick_gains(scheduled)
    assert not {"gpsimd", "dma"} & estimated
    assert found["gpsimd"] == gains(scheduled, "gpsimd")["gpsimd"] > 0.05 * scheduled.total_ns
    assert found["dma"] == gains(scheduled, "dma")["dma"] > 0


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_piece_of_a_workload_takes_as_long_as_its_instructions_alone(share):
    chip = get_chip("trn2")
    events = events_of("v7", 1024, chip)
    work = prepare(events, chip, reorder=True)
    part = excerpt(work, 1, share)
    begin = round((1 - share) / 2 * len(events))
    alone = prepare(events[begin : begin + len(part.kind)], chip, reorder=True, cores=work.cores)
    assert list(part.events) == list(alone.events)
    assert part.tiles.touches == alone.tiles.touches
    assert (part.tiles.first, part.tiles.last, part.tiles.uses) == (alone.tiles.first, alone.tiles.last, alone.tiles.uses)
    assert run_in_window(Lookahead(part, 64)).done.max() == pytest.approx(run_in_window(Lookahead(alone, 64)).done.max())
