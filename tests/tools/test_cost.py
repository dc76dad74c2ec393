"""Costs: arithmetic against figures worked out elsewhere, dated prices, a user's own, and what the text says."""

import json
import os

import pytest
from typer.testing import CliRunner

from nki_hf.chips import get_chip
from nki_hf.chips.measurements import error_range
from nki_hf.chips.prices import PRICES, Instance, Price, economics, instances, parse_prices, with_own
from nki_hf.cli import app
from nki_hf.tools.costing.dollars import cost_rows, dollars_per_pflop
from nki_hf.tools.costing.times import CallTime

QUICK = ("--shape", "hq=1,sq=128,skv=128")


def _cost(*words):
    return CliRunner().invoke(app, ["cost", *map(str, words)])


def _time(**changes):
    given = {
        "what": "x",
        "chip": "trn2",
        "kernel": "flash_const_max",
        "lnc": 1,
        "us": 1000.0,
        "simulated": True,
        "tokens": 4096,
        "flops": 10**9,
        "band": None,
    }
    return CallTime(**given | changes)


def _instance(name):
    (found,) = (item for item in instances() if item.name == name)
    return found


def test_the_prices_are_those_of_the_published_tables():
    """By hand, from AWS's price list, its documentation's table, and its list of capacity blocks."""
    expected = {
        "trn1.2xlarge": {1.34, 0.512},
        "trn1.32xlarge": {21.50, 8.197, 9.532},
        "inf2.48xlarge": {12.98, 5.608},
        "trn2.3xlarge": {2.235},
        "trn2.48xlarge": {35.76},
        "p5.4xlarge": {4.326},
    }
    for name, dollars in expected.items():
        assert {price.dollars for price in _instance(name).prices} == dollars


def test_every_price_has_a_kind_a_date_and_a_source():
    for item in instances():
        for price in item.prices:
            assert price.kind in {"on demand", "3-year", "capacity block", "spot"}
            assert price.date.startswith("2026")
            assert price.source


@pytest.mark.parametrize(("of_peak", "dollars"), [(0.31, 0.0032), (0.92, 0.0011)])
def test_attention_at_a_share_of_peak_costs_what_was_worked_out_by_hand(of_peak, dollars):
    """trn2.3xlarge at 2.235 $/h has 8 x 78.6 = 629 TFLOP/s: 2.235 / 3600 / (629e12 x share) x 1e15."""
    flops = int(of_peak * 78.6e12 * 1e-3)  # of one core in a millisecond
    (row,) = cost_rows([_time(flops=flops)], [_instance("trn2.3xlarge")])
    assert row.cores == 8
    assert row.per_pflop == pytest.approx(dollars, abs=0.5e-4)  # two figures were worked out


def test_dollars_per_million_tokens_by_hand():
    """3.6 $/h is 0.001 $/s; one core does 4,096 tokens in 1 ms; 28 layers, 2 of 2 cores."""
    machine = Instance(name="m", chip="trn1", accelerators=1, cores=2, peak_tflops=1, prices=(_price(3.6),))
    (row,) = cost_rows([_time(chip="trn1")], [machine], layers=28)
    assert row.per_million_tokens == pytest.approx(0.001 * (1e6 / 4096) * 1e-3 / 2 * 28)
    assert row.per_pflop == pytest.approx(0.001 / (2 * 1e12) * 1e15)


def test_fewer_cores_cost_more_because_the_whole_instance_is_paid():
    rows = [cost_rows([_time()], [_instance("trn2.3xlarge")], cores=cores)[0] for cores in (1, 2, 8)]
    assert [row.per_pflop / rows[2].per_pflop for row in rows] == pytest.approx([8, 4, 1])


def test_a_call_on_two_cores_counts_both():
    one, two = (cost_rows([_time(lnc=lnc)], [_instance("trn2.3xlarge")])[0] for lnc in (1, 2))
    assert two.per_pflop == pytest.approx(2 * one.per_pflop)
    with pytest.raises(ValueError, match=r"cores=3 are not whole calls: one on trn2 takes 2"):
        cost_rows([_time(lnc=2)], [_instance("trn2.3xlarge")], cores=3)


def test_the_error_band_turns_into_a_span_of_dollars():
    """A model that says 1,000 us and is 25 % too long, or 20 % too short, stands for 800 or 1,250 us."""
    (row,) = cost_rows([_time(band=(-0.2, 0.25))], [_instance("trn2.3xlarge")])
    assert row.span == pytest.approx((0.8, 1.25))


def test_the_published_economics_are_what_they_say_they_are():
    trn1, gpu = economics()
    assert trn1.dollars / trn1.tflops == pytest.approx(trn1.dollars_per_tflops_hour, rel=0.01)
    assert gpu.dollars / gpu.dollars_per_tflops_hour == pytest.approx(200, rel=0.01)  # the rate of one, the price of eight
    assert trn1.dollars_per_pflop == pytest.approx(1.33 / 3600 / 43e12 * 1e15, rel=0.01)
    assert dollars_per_pflop(23 / 8, 200) < trn1.dollars_per_pflop < gpu.dollars_per_pflop


def test_the_text_says_what_is_simulated_what_is_missing_and_where_the_published_table_slips():
    done = _cost(*QUICK)
    assert done.exit_code == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    text = " ".join(done.stdout.split())
    low, high, _ = error_range("attention", "trn2")
    for words in (
        "simulated, flash_",
        "error on measured rows: attention, trn2",
        "(sim)",
        f"x{1 / (1 + high):.2f}-{1 / (1 + low):.2f}",
        "on demand 26-06",
        "block 26-05",
        "trn2.3xlarge",
        "inf2.xlarge",
        "No price was found for trn2u.48xlarge, trn3",
        "Not in it: the rest of the model",
        "idle hours",
        "A100 (p4d.24xlarge): 23 $/h, called spot; 0.115",
        "the price of eight GPUs by the rate of one",
        "is about the on-demand price of trn1.2xlarge",
    ):
        assert words in text, words


def test_json_has_every_assumption():
    body = json.loads(_cost(*QUICK, "--chip", "trn2", "--layers", 4, "--json").stdout)
    assert body["layers"] == 4
    assert {row["instance"] for row in body["rows"]} == {"trn2.3xlarge", "trn2.48xlarge"}
    assert {"price_kind", "price_date", "price_source", "cores_used", "simulated", "of_peak"} <= set(body["rows"][0])
    assert body["not_in_it"].startswith("Not in it")


def test_a_price_of_ones_own_takes_the_place_of_what_was_known():
    rows = json.loads(_cost(*QUICK, "--chip", "trn3", "--price", "trn3=10", "--json").stdout)["rows"]
    assert [(row["dollars_an_hour"], row["price_kind"]) for row in rows] == [(10.0, "own")]
    (changed,) = (item for item in with_own(instances(), ["trn1.2xlarge=1"]) if item.name == "trn1.2xlarge")
    assert [price.dollars for price in changed.prices] == [1.0]


def test_a_file_of_prices_takes_the_place_of_ours(tmp_path):
    own = {
        "name": "mine",
        "chip": "trn2",
        "accelerators": 1,
        "cores": 8,
        "prices": [{"dollars": 1, "kind": "contract", "date": "2026-11", "source": "invoice"}],
    }
    (tmp_path / "p.json").write_text(json.dumps({"instances": [own]}))
    rows = json.loads(_cost(*QUICK, "--prices", tmp_path / "p.json", "--json").stdout)["rows"]
    assert [(row["instance"], row["price_kind"]) for row in rows] == [("mine", "contract")]
    assert parse_prices(PRICES.read_bytes(), PRICES) == instances()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("[]", 'has no list "instances"'),
        ("{", "cannot be read as JSON"),
        ('{"instances": [{"name": "a"}]}', "instance 1: lacks 'accelerators'"),
        ('{"instances": [{"name": "a", "chip": "trn9", "accelerators": 1, "cores": 2, "prices": []}]}', "chip='trn9'"),
        ('{"instances": [{"name": "a", "chip": "trn1", "accelerators": 1, "cores": 0, "prices": []}]}', "'0' is no count"),
        (
            '{"instances": [{"name": "a", "chip": "trn1", "accelerators": 1, "cores": 2, "prices": [{"dollars": -1, '
            '"kind": "x", "date": "y", "source": "z"}]}]}',
            "'-1' is no price",
        ),
        ('{"instances": 5}', 'has no list "instances"'),
        ('{"instances": [5]}', "instance 1: '5' is no instance"),
        ('{"instances": [{"name": 5, "chip": "trn1", "accelerators": 1, "cores": 2, "prices": []}]}', "name=5 is no text"),
        ('{"instances": [{"name": "a", "chip": "trn1", "accelerators": 1, "cores": 2, "prices": null}]}', "prices=None is"),
        ('{"instances": [{"name": "a", "chip": "trn1", "accelerators": 1, "cores": 2, "prices": [3]}]}', "no list of objects"),
        (
            '{"instances": [{"name": "a", "chip": "trn1", "accelerators": 1, "cores": 2, "prices": [{"dollars": true, '
            '"kind": "x", "date": "y", "source": "z"}]}]}',
            "'True' is no price",
        ),
    ],
)
def test_a_file_of_prices_that_means_nothing_is_one_sentence(tmp_path, body, why):
    (tmp_path / "p.json").write_text(body)
    done = _cost(*QUICK, "--prices", tmp_path / "p.json")
    assert done.exit_code == 2
    assert why in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--price", "trn9=1"), "is not NAME=DOLLARS"),
        (("--price", "trn3=free"), "price='trn3=free': 'free' is no price: it is US dollars an hour"),
        (("--price", "trn2.3xlarge=1e308"), "price='trn2.3xlarge=1e308': '1e308' is no price"),
        (("--price", "trn2.3xlarge=1e-300"), "'1e-300' is no price"),
        (("--price", "trn2.3xlarge=1.9€"), "'1.9€' is no price: it is US dollars an hour, a plain number such as 1.34"),
        (("--price", "trn2.3xlarge=1,9"), "a plain number such as 1.34, from 0.001 to 1,000,000"),
        (("--price", "trn2.3xlarge=1", "--price", "trn2.3xlarge=2"), "'trn2.3xlarge=2' is the second of trn2.3xlarge"),
        (("--chip", "trn1", "--price", "trn2.3xlarge=1"), "price=trn2.3xlarge is not used with chip=trn1: it has trn2"),
        (("--chip", "trn1", "--price", "p4d.24xlarge=9"), "price=p4d.24xlarge is not used with chip=trn1: it has A100"),
        (("--cores", "0"), "cores=0 is not a number of cores"),
        (("--layers", "0"), "layers=0 is not a number of layers"),
        (("--chip", "trn3"), "no price is known for trn3: give one"),
        (("--chip", "trn2", "--cores", "1"), "one on trn2 takes 2; give a multiple, or --lnc 1"),
        (("--chip", "trn1", "--cores", "64"), "no instance with a price fits"),
        (("--lnc", "2"), "lnc=2 is not possible on trn1"),
    ],
)
def test_wrong_use_is_one_sentence(words, why):
    done = _cost(*QUICK, *words)
    assert done.exit_code == 2
    assert why in done.stderr


def test_measured_times_take_the_place_of_simulated_ones(tmp_path):
    """v11 at 4,096 keys is published at 360 us: 4 x 4096**2 x 128 operations, 23.9 TFLOP/s a core, two cores at 1.34 $/h."""
    (tmp_path / "own.csv").write_text("chip,kernel,shape,us\ntrn1,v11,4096,360\n")
    done = _cost("--measured", tmp_path / "own.csv", "--json")
    assert done.exit_code == 0, done.stderr
    row = next(row for row in json.loads(done.stdout)["rows"] if row["dollars_an_hour"] == 1.34)
    assert row["simulated"] is False
    assert row["dollars_per_attention_pflop"] == pytest.approx(1.34 / 3600 / (2 * 4 * 4096**2 * 128 / 360e-6) * 1e15)
    assert "measured (yours)" in _cost("--measured", tmp_path / "own.csv").stdout


def test_measured_calls_of_several_shapes_have_a_table_each(tmp_path):
    rows = 'trn2,flash_const_max,"sq=512,causal",20\ntrn2,flash_const_max,"sq=1024,causal",40\n'
    (tmp_path / "own.csv").write_text(f"chip,kernel,shape,us\n{rows}")
    said = _cost("--measured", tmp_path / "own.csv", "--price", "trn2.3xlarge=1").stdout
    first, second = said.split("dollars of attention, 1 layer, ")[1:]
    assert first.startswith("flash_const_max sq=512,causal")
    assert second.startswith("flash_const_max sq=1024,causal")
    for table, us, tokens in ((first, 20, 512), (second, 40, 1024)):  # 8 calls of one core at a time on the instance's 8
        line = next(line for line in table.splitlines() if line.startswith("trn2.3xlarge"))
        assert float(line.split()[4]) == pytest.approx(1 / 3600 * us / 8 / tokens, rel=0.005)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('trn2,flash_backward,"sq=512,causal",9', "line 3: kernel=flash_backward computes gradients"),
        ("trn2,flash_backward,512,9", "line 3: kernel=flash_backward computes gradients"),
        ("trn2,v99,512,9", "line 3: kernel='v99' is not known"),
    ],
)
def test_a_measured_row_of_no_forward_kernel_is_named_with_its_line(tmp_path, row, why):
    (tmp_path / "own.csv").write_text(f"chip,kernel,shape,us\ntrn1,v11,4096,360\n{row}\n")
    done = _cost("--measured", tmp_path / "own.csv")
    assert done.exit_code == 2
    assert why in done.stderr


@pytest.mark.parametrize("words", [("--shape", "sq=512"), ("--lnc", "1"), ("--order", "program")])
def test_what_measured_rows_say_themselves_is_refused(tmp_path, words):
    (tmp_path / "own.csv").write_text("chip,kernel,shape,us\ntrn1,v11,4096,360\n")
    done = _cost("--measured", tmp_path / "own.csv", *words)
    assert done.exit_code == 2
    assert f"{words[0].removeprefix('--')}={words[1]} is not used with measured=" in done.stderr


@pytest.mark.parametrize(
    "words", [("cost", "--prices"), ("cost", "--measured"), ("correlate", "--measured"), ("profile",)], ids=" ".join
)
def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path, words):
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(app, [*words, str(tmp_path / "pipe")])
    assert done.exit_code == 2
    assert "it is no regular file" in done.stderr


def test_peaks_of_instances_are_those_of_the_chips():
    assert _instance("trn2.3xlarge").peak_tflops == pytest.approx(8 * get_chip("trn2").tensor_peak_tflops)


def _price(dollars):
    return Price(dollars=dollars, kind="on demand", date="2026", source="test")
