"""`Task.part` of a task of a user: what is no part of the whole is wrong use, not a fault of the kernel."""

import pytest
from judged_products import MATMUL, ROWS_TASK

import nki_hf


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ("lambda arrays, index: 1 / 0", "its part raises ZeroDivisionError at size 256"),
        ("lambda arrays, index: exit(3)", "its part raises SystemExit at size 256: 3"),
        ("5", "part=5 must be a function or None"),
        ("lambda arrays, index: None", "its part gives NoneType at size 256: it must give arrays by name, a, b"),
        (
            "lambda arrays, index: {'a': arrays['a'][index]}",
            "its reference, of what its part gives, raises TypeError at size 256",
        ),
        (
            "lambda arrays, index: arrays",
            r"its reference gives \[256, 2048\] of what its part gives for rows 128 to 255 of the output at size 256, "
            r"which are \[128, 2048\]",
        ),
        ("lambda arrays, index: {**arrays, 'a': arrays['a'][index] * np.nan}", "is other than that of all arrays for rows 128"),
        (
            "lambda arrays, index: {**arrays, 'a': np.roll(arrays['a'], 1, 0)[index]}",
            "is other than that of all arrays for rows",
        ),
    ],
)
def test_a_part_that_is_none_is_wrong_use(part, said, tmp_path):
    """It would be the right kernel that fails."""
    (tmp_path / "task.py").write_text(ROWS_TASK.format(part=f", part={part}"))
    (tmp_path / "kernel.py").write_text(MATMUL)
    with pytest.raises(ValueError, match="task product: .*" + said):
        nki_hf.judge(tmp_path / "kernel.py", str(tmp_path / "task.py"), check=(128, 256), at=(4096,), chip=("trn2",))
