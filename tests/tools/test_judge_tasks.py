"""`nki_hf judge` on every task that is no attention: right kernels pass, planted mistakes are caught and named."""

from __future__ import annotations

import pytest

import nki_hf
from tests.support.judged_task_mistakes import WRONG
from tests.support.judged_tasks import RIGHT


@pytest.fixture
def judged(tmp_path):
    def judge(task: str, text: str):
        file = tmp_path / "kernel.py"
        file.write_text(text)
        return nki_hf.judge(file, task, seed=5, until="values", chip=("trn2",))

    return judge


def said(record) -> str:
    return " | ".join([record["sentence"], *(item["message"] for item in record["findings"])])


@pytest.mark.parametrize("task", RIGHT)
def test_a_right_kernel_passes(judged, task):
    record = judged(task, RIGHT[task])
    assert record["passed"], said(record)


@pytest.mark.parametrize("planted", WRONG, ids=lambda item: f"{item[0]}: {item[2].strip()[:40]}")
def test_a_planted_mistake_is_caught_and_named(judged, planted):
    task, *pairs = planted[:3]
    words, rest = planted[3], planted[4:]
    text = RIGHT[task]
    for old, new in (pairs, *zip(rest[::2], rest[1::2], strict=True)):
        assert old in text
        text = text.replace(old, new)
    record = judged(task, text)
    assert not record["passed"], said(record)
    assert words in said(record)
