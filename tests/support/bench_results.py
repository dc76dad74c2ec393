"""Records of the benchmark that no run made, for tests of what is drawn and said of them."""

from nki_hf.tools.model_bench.accuracy import Accuracy
from nki_hf.tools.model_bench.measure import Timing
from nki_hf.tools.model_bench.modelled import Modelled
from nki_hf.tools.model_bench.published import AIM414
from nki_hf.tools.model_bench.record import BenchResult, Row

HEADER = {"machine": "a machine", "device": "cpu", "times": "wall clock of this CPU", "model": "m, 4 layers", "input": "1 x 8"}


def row(attn, times, **changes):
    """A row with these times."""
    accuracy = Accuracy(
        mse=1e-6,
        cosine=1.0,
        max_abs=1e-3,
        worst_row=(0, 1),
        worst_row_rms=1e-3,
        worst_row_ratio=1.0,
        rms_error=1e-3,
        rms_ratio=0.9,
        passed=True,
        remark="",
    )
    timing = Timing.of(1.0, times)
    return Row(attn=attn, **{"timing": timing, "prompts_per_s": 1 / timing.mean_s, "accuracy": accuracy} | changes)


def modelled_row(chip, us, cores=2, **changes):
    """A simulated row, eager-like ten times as long."""
    kinds = {"nki": us, "eager_like": 10 * us}
    found = {"chip": chip, "cores": cores, "kernel": "flash_const_max", "band": "a band"}
    for kind, each in kinds.items():
        found |= {f"{kind}_us_simulated": each, f"{kind}_model_ms_simulated": 4 * each / 1e3}
        found |= {f"{kind}_prompts_per_s_simulated": 1e6 / 4 / each, f"{kind}_share_simulated": each / (each + 1000)}
    return found | changes


def result(rows, *, us=1000.0, published=False, **changes):
    """A record of these rows, simulated at `us` microseconds a layer on trn2 and trn3."""
    simulated = Modelled(
        problem="p",
        layers=4,
        rows=(modelled_row("trn2", us), modelled_row("trn3", us)),
        one_core=modelled_row("trn2", 2 * us, cores=1) if published else None,
    )
    given = {
        "command": "python examples/qwen3_bench.py",
        "header": HEADER,
        "reference": {"what": "eager in float32"},
        "baseline_rms": 1e-3,
        "rows": tuple(rows),
        "modelled": (simulated,),
        "passed": True,
        "verdict": "as good as eager",
        "published": AIM414 if published else (),
    }
    return BenchResult(**given | changes)
