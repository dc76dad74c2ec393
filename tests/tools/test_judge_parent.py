"""The kernel of `--against` is judged at every size at which the kernel is: a parent that is wrong credits no speed-up."""

import pytest
from judged_kernels import RIGHT, WRONG, planted

import nki_hf

COUNTED = ("T = 128", "T = 128\nimport itertools\nCOUNT = itertools.count()")


@pytest.fixture
def against(tmp_path):
    """The record of a kernel beside a parent, at one tile and at two."""

    def judged(parent, kernel=RIGHT, **options):
        (tmp_path / "parent.py").write_text(parent)
        (tmp_path / "kernel.py").write_text(kernel)
        given = {"layout": "q=ds,k=ds", "check": (128,), "at": (256,), "seed": 7, "chip": ("trn2",), **options}
        return nki_hf.judge(tmp_path / "kernel.py", "attention_causal", against=str(tmp_path / "parent.py"), **given)

    return judged


def test_a_right_parent_says_at_which_sizes(against):
    record = against(RIGHT)
    assert (record["against"]["verdict"], record["against"]["right_at"]) == ("right", [128, 256])
    assert record["times"][0]["speedup"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["correction forgotten in sums", "correction forgotten in acc"])
def test_a_parent_that_is_right_at_the_first_size_alone_fails(against, name):
    record = against(planted(WRONG[name]))
    assert record["passed"], record["sentence"]
    found = record["against"]
    assert (found["verdict"], found["right_at"]) == ("fails", [128])
    assert found["detail"].startswith("at size 256: out is wrong on normal inputs")
    assert any("no speed-up over it is credited" in words for words in record["warnings"])
    assert record["times"][0]["speedup"] is None


@pytest.mark.parametrize(
    ("parent", "words"),
    [
        (RIGHT.replace("range(tiles):\n        top", "range(tiles if next(COUNT) < 3 else 1):\n        top"), "another pro"),
        (planted(WRONG["accumulators in bf16"]), "at size"),
        (
            RIGHT.replace(
                "tiles = s // T\n",
                "tiles = s // T\n    big = nl.ndarray((T, 1000 * s), nl.uint8, buffer=nl.sbuf)\n"
                "    nisa.memset(dst=big, value=0)\n",
            ),
            "at size 256: memset: SBUF overflow",
        ),
    ],
)
def test_a_parent_fails_as_it_would_if_it_were_judged_itself(against, parent, words):
    parent = parent.replace(*COUNTED)
    record = against(parent)
    assert record["passed"], record["sentence"]
    assert record["against"]["verdict"] == "fails", record["against"]
    assert words in record["against"]["detail"]
    assert not against(parent, kernel=parent)["passed"]


def test_a_parent_that_does_not_take_a_judged_size_did_not_run(against):
    record = against(RIGHT.replace("tiles = s // T\n", "tiles = s // T\n    assert s < 256\n"), at=(128,))
    assert record["against"]["verdict"] == "not run"
    assert any("did not run" in words for words in record["warnings"])


def test_nothing_is_said_of_the_parent_of_a_kernel_that_fails(against):
    record = against(RIGHT, kernel=planted(WRONG["scale missing"]), until="values")
    assert not record["passed"]
    assert record["against"] is None
