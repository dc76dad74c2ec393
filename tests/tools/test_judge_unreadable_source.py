"""A file that is no text: the message says which file and line, of the kernel or of a module beside it."""

import pytest

import nki_hf

KERNEL = """import nki
import parts


@nki.jit
def nothing(x):
    return x
"""


@pytest.mark.parametrize("name", ["kernel.py", "parts.py"])
def test_a_null_byte_is_said_to_be_where_it_is(name, tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / name).write_bytes(b"import nki\n\n\0")
    record = nki_hf.judge(tmp_path / "kernel.py", "softmax", check=(128,))
    assert (record["passed"], record["stage"]) == (False, "load")
    assert f"null bytes ({name}:3)" in record["sentence"]
    assert (record["findings"][0]["file"], record["findings"][0]["line"]) == (str(tmp_path / name), 3)
