"""What the command line says of an error: one sentence, whose fault it is, and the traceback where it is asked for."""

from pathlib import Path

import pytest

from nki_hf.errors import DeviceFailed
from nki_hf.tools.program import finished, sentence

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("two\nlines"), "two lines"),
        (ValueError("colour \x1b[31m"), "colour \\x1b[31m"),
        (MemoryError(), "there is not enough memory: give smaller sizes."),
        (MemoryError("SBUF is full."), "SBUF is full."),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), "not enough memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (FileNotFoundError(2, "No such file or directory", "x.py"), "x.py cannot be used (No such file or directory)"),
        (OSError(28, "No space left on device"), "output cannot be written (No space left on device)."),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "use UTF-8"),
        (KeyError("x"), "this is a fault of nki_hf itself: KeyError: 'x'"),
        (ValueError(), "this is a fault of nki_hf itself: ValueError"),
    ],
)
def test_an_error_is_one_sentence(error, text):
    assert text in sentence(error)
    assert "\n" not in sentence(error)


def raised(text, module="torch_neuronx.core", file="/elsewhere/core.py", kind="RuntimeError"):
    """An error that the Python of another package raised."""
    code = compile(f"raise {kind}({text!r})", file, "exec")
    try:
        exec(code, {"__name__": module})
    except Exception as error:
        return error


def test_what_a_device_reports_is_no_fault_of_ours():
    failed = DeviceFailed("flash_prefill[1]() failed on the device: RuntimeError: NCC_EBVF030. Shorten the sequence.")
    assert sentence(failed) == str(failed)
    told = sentence(raised("NRT_RESOURCE: the core is held by process 17"))
    assert told.startswith("torch_neuronx raised RuntimeError: NRT_RESOURCE: the core is held by process 17 (tests/tools/")
    assert "fault of nki_hf" not in told


@pytest.mark.parametrize(
    "error",
    [
        raised("x", module="nki_hf.tools.y", file=str(ROOT / "nki_hf" / "tools" / "y.py")),
        raised("", kind="RuntimeError"),
        raised("x", kind="TypeError"),
        raised("x", kind="NotImplementedError"),
    ],
)
def test_what_may_be_a_fault_of_ours_is_called_one(error):
    assert "this is a fault of nki_hf itself" in sentence(error)


def test_a_sentence_has_an_end():
    assert len(sentence(ValueError("x" * 10**6))) < 2100


def test_the_traceback_is_shown_when_asked_for(monkeypatch, capsys):
    monkeypatch.setenv("NKI_HF_TRACEBACK", "1")
    assert finished(lambda: {}["x"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_130(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert finished(interrupted) == 130
    assert capsys.readouterr().err == "interrupted.\n"
