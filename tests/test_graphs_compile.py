"""Graphs: compiled, exported, generated with every cache and search, under autocast; always eager's numbers, no graph breaks.

`make test` runs two graphs and all generations of two models; the full table, as in docs/ways.md, is slow.
"""

import pytest
from graph_ways import MODELS, WAYS, run

_TOKENS = ("generate", "decode step")
_FAST = {
    ("qwen3", "compile, eager, dynamic=True"),
    ("gpt_oss, sinks", "export, non-strict"),
    ("qwen3", "export, non-strict"),
    *((model, way) for model in ("qwen3", "gemma2, softcap") for way in WAYS if way.startswith(("generate", "autocast"))),
}
# Inductor compiles C++ for every graph: two models stand for all, since it sees the same op in each.
_CASES = [
    pytest.param(model, way, marks=[] if (model, way) in _FAST else pytest.mark.slow)
    for model in MODELS
    for way in WAYS
    if "inductor" not in way or (model in ("qwen3", "gemma2, softcap") and "None" in way)
]


@pytest.mark.parametrize(("model", "way"), _CASES)
def test_every_way_gives_eagers_numbers_without_graph_breaks(model, way):
    figure = run(model, way)
    assert figure.difference <= (0 if way.startswith(_TOKENS) else 1e-2 if "autocast" in way else 2e-6)
    assert not figure.breaks
    if way.startswith("compile,") and not way.startswith("compile, inductor"):
        # One graph with padding and one without serve every length, unless shapes are static.
        assert figure.graphs <= (6 if "False" in way else 4 if "None" in way else 2)
