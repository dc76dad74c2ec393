"""Ways of running a model: compiled, exported, generated, trained, saved; always eager's numbers, no graph breaks.

`make test` runs what takes seconds; the full table, as in docs/ways.md, is slow.
"""

import pytest
from graph_ways import MODELS, WAYS, cases, run, written

_FAST = {
    ("qwen3", "compile, eager, dynamic=True"),
    ("qwen3", "export, non-strict"),
    ("t5, position bias", "export, non-strict"),
    *((model, way) for model in ("qwen3", "gemma2, softcap") for way in WAYS if way.startswith("generate,")),
    *(
        (model, way)
        for model in ("qwen3", "bert, encoder")
        for way in WAYS
        if not way.startswith(("comp", "export", "generate"))
    ),
}


def _judge(way, difference, breaks, recompiles):
    assert difference <= WAYS[way].limit
    if WAYS[way].recompiles is not None:
        assert breaks == 0
        assert recompiles <= WAYS[way].recompiles


def _fast(model, way):
    return (model, way) in _FAST and "compiled" not in way


@pytest.mark.parametrize(
    ("model", "way"),
    [pytest.param(model, way, marks=[] if _fast(model, way) else pytest.mark.slow) for model, way in cases()],
)
def test_every_way_gives_eagers_numbers_without_graph_breaks(model, way):
    if "inductor" in way:
        _needs_a_compiler()
    figure = run(model, way)
    _judge(way, figure.difference, figure.breaks, figure.recompiles)
    assert (figure.breaks is None) == (WAYS[way].recompiles is None)


def _needs_a_compiler():
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        pytest.skip(f"inductor compiles C++, and this machine has no compiler: {error}")


def test_the_page_has_a_right_row_for_every_model_and_way():
    rows = written(any_versions=True)
    assert rows.keys() == {(way, model) for model, way in cases()}
    for (way, _), (difference, breaks, _, recompiles) in rows.items():
        traced = breaks != "-"
        assert traced == (WAYS[way].recompiles is not None)
        _judge(way, float(difference), int(breaks) if traced else None, int(recompiles) if traced else None)


def test_every_kind_of_model_is_among_them():
    assert {model.kind for model in MODELS.values()} == {"decoder", "encoder", "encoder-decoder"}
