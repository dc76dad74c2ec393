"""The reader of the benchmark's event file: what it counts is what a run wrote; what is no such file is one sentence."""

import json

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.dispatch import decide
from nki_hf.tools.model_bench.profile import event_lines, write_events
from nki_hf.tools.profile import read_launches, shape_of
from nki_hf.tools.shape import problem_of

SHAPES = (
    "hq=2,hkv=1,sq=128,causal",
    "sq=128,skv=256,d=64",
    "hq=2,sq=256,window=64",
    "sq=128,scale=0.5,softcap=20.0,dtype=float32",
    "hq=2,sq=128,sink,causal",
    "sq=128,skv=256,causal,offset=7",
    "hq=2,sq=128,bias",
    "b=2,hq=2,sq=128,causal,bias=batch+heads",
    "hq=2,sq=128,mask=one,bounds",
)


def _decision(shape):
    return decide(problem_of(shape), backend="simulator", chip="trn2", lnc=1)


def _profile(*words):
    return CliRunner().invoke(app, ["profile", *map(str, words)])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_it_prints_is_the_problem_that_ran(shape):
    head = next(event_lines(_decision(shape)))["launch"]
    words = shape_of(json.loads(json.dumps(head, default=str)))
    again, once = problem_of(words), problem_of(shape)
    assert (again.mask, again.dtype, again.softcap, again.sink) == (once.mask, once.dtype, once.softcap, once.sink)
    assert again.num_heads_q == once.num_heads_q
    assert (again.softmax_scale or again.head_dim**-0.5) == pytest.approx(once.softmax_scale or once.head_dim**-0.5)


def test_a_file_that_was_written_is_read(tmp_path):
    path, decision = tmp_path / "r.events.jsonl", _decision(SHAPES[0])
    count = write_events(path, [decision, _decision(SHAPES[1])])
    events = [line for line in event_lines(decision) if "launch" not in line]
    first, second = read_launches(path)
    assert first.count + second.count == count
    assert first.count == len(events)
    stored = sum(r["bytes"] for e in events for r in e["writes"] if r["space"].endswith("hbm"))
    assert first.hbm["writes"] == stored
    assert stored >= 2 * 128 * 128 * 2  # the output: two heads of 128 x 128 bfloat16
    done = _profile(path)
    assert done.exit_code == 0, done.stderr
    assert f"launch 1 of 2: {decision.kernel} on trn2, 1 core, {first.count:,} instructions" in done.stdout
    assert f"nki_hf report --kernel {decision.kernel} --shape hq=2,hkv=1,sq=128,causal --chip trn2 " in done.stdout
    body = json.loads(_profile(path, "--json").stdout)
    assert [launch["instructions"] for launch in body] == [first.count, second.count]
    assert sum(row["count"] for row in body[0]["opcodes"]) == first.count


@pytest.mark.parametrize("lnc", [1, 2])
def test_the_command_of_a_launch_on_two_cores_says_that_it_is_of_one(tmp_path, lnc):
    """The report runs all heads on one core; of a launch on two it has another time."""
    path = tmp_path / "r.events.jsonl"
    write_events(path, [decide(problem_of(SHAPES[0]), backend="simulator", chip="trn2", lnc=lnc)])
    assert ("all of it run by one core in place of 2:" in " ".join(_profile(path).stdout.split())) == (lnc == 2)


def test_a_window_without_a_last_key_has_no_command():
    """`window=n` is causal."""
    head = next(event_lines(_decision("sq=128,window=64")))["launch"]
    assert shape_of(head) == "sq=128,causal,window=64"
    assert shape_of({**head, "mask": {**head["mask"], "ahead": None}}) is None


@pytest.mark.parametrize("body", ["", "x", "[]", "5", '{"launch": 5}', '{"index": 0}', "[" * 50_000, '{"launch": {}}', "\xff"])
def test_what_is_no_event_file_is_one_sentence(tmp_path, body):
    (tmp_path / "x").write_bytes(body.encode("latin-1"))
    done = _profile(tmp_path / "x")
    assert done.exit_code == 2
    assert "give the .events.jsonl that --profile wrote" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
