"""A user's task that hangs or ends its process is named, and wrong use: no kernel is to blame, and `judge` itself goes on."""

import pytest

from nki_hf.tools.judging.under_way import blamed
from tests.support.judged_own_tasks import TWICE, judged_by
from tests.support.judged_tasks import RIGHT


@pytest.fixture
def wrong_use(tmp_path):
    def run(text, timeout=60.0):
        with pytest.raises(ValueError, match=r"^task") as raised:
            judged_by(tmp_path, text, until="values", timeout=timeout)
        return str(raised.value)

    return run


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os; os._exit(0)", "its file, while it was imported, ended the process itself, with exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "its file, while it was imported, was ended by the signal SIGKILL"),
        ("raise BaseException('hm')", "cannot be imported: BaseException: hm."),
        ("raise KeyboardInterrupt", "cannot be tried: KeyboardInterrupt."),
    ],
)
def test_a_file_that_ends_its_process_is_wrong_use(text, said, wrong_use):
    assert said in wrong_use(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            "'reference': lambda x: os._exit(0)",
            "task own: its reference at size 128 ended the process itself, with exit code 0",
        ),
        (
            "'part': lambda arrays, index: os._exit(3)",
            "task own: its part at size 256 ended the process itself, with exit code 3",
        ),
        ("'flops': lambda size: os._exit(0)", "task own: its arrays, flops or constants ended the process itself"),
        ("'wrong': {'half': lambda x: os._exit(0)}", "task own: its wrong 'half' at size 128 ended the process itself"),
        ("'reference': at(128, lambda: os.kill(os.getpid(), 15))", "its reference at size 128 was ended by the signal SIGTERM"),
    ],
)
def test_a_function_that_ends_its_process_is_wrong_use(fields, said, wrong_use):
    assert said in wrong_use(TWICE % fields)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("while True: pass", "its file, while it was imported, was still running after 2 s (--timeout)"),
        (TWICE % "'reference': lambda x: time.sleep(999)", "task own: its reference at size 128 was still running after 2 s"),
    ],
)
def test_what_never_ends_is_wrong_use(text, said, wrong_use):
    assert said in wrong_use(text, 2.0)


def test_a_function_that_ends_the_judges_process_is_named(tmp_path):
    """At a size that is not tried."""
    kernel = RIGHT["softmax"].split("@nki.jit")[0] + KERNEL
    with pytest.raises(ValueError, match="task own: its reference at size 256 ended the process itself, with exit code 0"):
        judged_by(tmp_path, TWICE % "'reference': at(256, lambda: os._exit(0))", kernel)


KERNEL = """@nki.jit
def twice(x):
    rows, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    for start in range(0, rows, 128):
        t = loaded(x[start : start + 128, :], 128, width)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[start : start + 128, :], src=t)
    return out
"""


def test_a_function_is_to_blame_for_half_of_the_time(tmp_path):
    """What is under way when the time is over may have begun just now."""
    note = tmp_path / "note"
    assert blamed(note, {"timeout": 2.0}) == ""
    note.write_text('["its part", 1e30, 0.0]')
    assert blamed(note, {"timeout": 2.0}) == ""
    note.write_text('["its part", 0.0, 0.0]')
    assert blamed(note, {"timeout": 2.0}) == "its part was still running after 2 s (--timeout)"
    note.write_text("")
    assert blamed(note, {"code": 0}) == ""
