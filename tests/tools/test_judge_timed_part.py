"""At the timed size one tile of rows is judged: tasks say what it follows from, and only what it needs of the program runs."""

import numpy as np
import pytest
from judged_kernels import RIGHT

import nki_hf
import nki_hf.sim.language as nl
from nki_hf.chips import get_chip
from nki_hf.sim import SimOptions, isa, launch
from nki_hf.sim.run.play import Marks
from nki_hf.sim.run.shortened import shortened, torn
from nki_hf.sim.stream.access_table import AccessTable
from nki_hf.tasks import load_task, task_names
from nki_hf.tools.judging.followed import Followed
from nki_hf.tools.judging.programs import recorded
from nki_hf.tools.judging.timed_part import needed_for
from nki_hf.tools.judging.times import stream_of
from nki_hf.tools.judging.values import run_tape

IN_PARTS = [name for name in task_names() if load_task(name).part is not None]
KERNEL = RIGHT.replace("for j in range(i + 1):", "for j in range(tiles):").replace("if j == i:", "if False:")
ROWS_TASK = """
import numpy as np
from nki_hf.tasks import FLOAT, Task

TASK = Task(
    name="product", about="a @ b", arrays=lambda n: {{"a": ((n, 512), FLOAT), "b": ((512, 2048), FLOAT)}},
    reference=lambda a, b: a @ b, flops=lambda n: 2 * n * 512 * 2048, check=(128, 256), at=(4096,){part},
)
"""


@pytest.mark.parametrize("name", IN_PARTS)
def test_a_part_of_a_task_is_that_of_the_whole(name):
    task = load_task(name)
    size = task.check[-1]
    rng = np.random.default_rng(3)
    arrays = {key: rng.standard_normal(shape) for key, (shape, _) in task.shapes(size, task.dtype).items()}
    whole = task.reference(**arrays, **task.constants(size))
    *outer, rows, _ = whole.shape
    for first, last in ((0, min(rows, 64)), (rows // 2, rows), (rows - 1, rows)):
        index = (*(slice(n // 2, n // 2 + 1) for n in outer), slice(first, last))
        part = task.reference(**task.part(arrays, index), **task.constants(size))
        np.testing.assert_allclose(part, whole[index], rtol=1e-9, atol=1e-9 * np.abs(whole).max())


@pytest.mark.parametrize(
    ("kernel", "task", "lnc"),
    [
        ("flash_prefill", "attention_causal", 1),
        ("flash_prefill", "attention_gqa", 2),
        ("v11", "attention_unscaled", 1),
        *(
            (f"nki_hf/tasks/kernels/products.py:{name}", task, 1)
            for name, task in (
                ("swiglu_best", "swiglu"),
                ("bmm_softmax_best", "nkibench_bmm_softmax"),
                ("lora_best", "nkibench_lora"),
                ("transpose_matmul_best", "nkibench_transpose_matmul"),
            )
        ),
    ],
)
def test_rows_of_a_shortened_program_are_those_of_the_whole(kernel, task, lnc):
    task, chip = load_task(task), get_chip("trn2")
    size = task.check[-1]
    found = recorded(kernel, task.name, (size,), (chip,), lnc=lnc)
    asked, played = found.launches[0], found.played[0]
    marks: dict[int, Marks] = {}
    launched = stream_of(asked, played, chip, lnc, marks)[0]
    assert not launched.run.short
    rng = np.random.default_rng(5)
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape, _ in asked["arrays"]}
    options = SimOptions(chip=chip, third_party=True, checks=False)
    whole = run_tape(played, arrays, options, lnc).outputs[0]
    followed = Followed(launched.events)
    number = launched.run.returned[0]
    shape = launched.run.buffers[number].shape
    for place in (0, shape[0] - 1):
        flags = np.zeros(shape, np.bool_)
        flags[place] = True
        tape = shortened(played["tape"], needed_for({number: flags}, launched, followed, marks), followed.table, marks)
        part = run_tape({**played, "tape": tape}, arrays, options, lnc).outputs[0]
        assert part[place].tobytes() == whole[place].tobytes()
    assert sum(map(len, tape["cores"].values())) < sum(map(len, played["tape"]["cores"].values())) or lnc == 2


def test_accumulators_hold_what_follows_from_earlier_instructions():
    def kernel():
        x = nl.ndarray((8, 4), dtype=nl.float32, buffer=nl.sbuf)
        isa.memset(dst=x, value=2.0)
        lost = nl.ndarray((8, 4), dtype=nl.float32, buffer=nl.sbuf)
        out = nl.ndarray((8, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        total = nl.ndarray((8, 1), dtype=nl.float32, buffer=nl.sbuf)
        for command in ("reset_reduce", "reset_reduce", "reduce"):
            isa.activation(
                dst=lost,
                op=nl.copy,
                data=x,
                reduce_op=nl.add,
                reduce_cmd=isa.reduce_cmd[command],
                **({"reduce_res": total} if command == "reduce" else {}),
            )
        isa.dma_copy(dst=out, src=total)
        return out

    launched = launch(kernel, (), options=SimOptions(chip=get_chip("trn2"), values=False))
    needed = Followed(launched.events).needed(np.array([len(launched.events) - 1]))
    assert [event.opcode for event in launched.events] == ["memset", *["activation"] * 3, "dma_copy"]
    assert needed.tolist() == [True, False, True, True, True]


def test_all_of_an_instruction_is_needed_where_a_part_of_it_is():
    def kernel():
        x = nl.ndarray((8, 4), dtype=nl.float32, buffer=nl.sbuf)
        for _ in range(5):
            isa.memset(dst=x, value=2.0)
        return nl.ndarray((8, 4), dtype=nl.float32, buffer=nl.shared_hbm)

    table = AccessTable(launch(kernel, (), options=SimOptions(chip=get_chip("trn2"), values=False)).events)
    marks = {0: Marks(events=[0, 1, 1, 4, 5], buffers=[-1, 0, -1, -1])}  # the third entry made three events
    needed = np.array([True, False, True, False, False])
    assert torn(needed, table, marks).tolist() == [1, 2, 3]
    assert not len(torn(np.array([True, True, True, True, False]), table, marks))


def _judged(folder, text, task="attention", at=2048, **options):
    file = folder / "kernel.py"
    file.write_text(text)
    options = {"layout": "q=ds,k=ds,v=sd", "check": (256, 512), **options}
    return nki_hf.judge(file, task, at=(at,), chip=("trn2",), **options)


def test_other_tiles_at_a_large_size_fail_though_the_work_is_the_same(tmp_path):
    right = _judged(tmp_path, KERNEL)
    assert right["passed"], right["sentence"]
    assert right["times"][0]["values"] == "part"
    place = "moving=vs[:, j, :]"
    assert place in KERNEL
    wrong = _judged(tmp_path, KERNEL.replace(place, "moving=vs[:, j * 7 % tiles if s > 512 else j, :]"))
    assert (wrong["passed"], wrong["stage"]) == (False, "times"), wrong["sentence"]
    assert "at size 2,048, of rows " in wrong["sentence"]
    assert "out is wrong on normal inputs" in wrong["sentence"]


MATMUL = '''
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def product(a, b):
    """a [n, 512] @ b [512, 2048]."""
    n = a.shape[0]
    out = nl.ndarray((n, 2048), dtype=a.dtype, buffer=nl.shared_hbm)
    right = nl.ndarray((128, 4, 2048), dtype=b.dtype, buffer=nl.sbuf)
    for k in range(4):
        nisa.dma_copy(dst=right[:, k, :], src=b[k * 128 : (k + 1) * 128, :])
    for i in range(n // 128):
        rows = nl.ndarray((128, 4, 128), dtype=a.dtype, buffer=nl.sbuf)
        for k in range(4):
            nisa.dma_transpose(dst=rows[:, k, :], src=a[i * 128 : (i + 1) * 128, k * 128 : (k + 1) * 128])
        done = nl.ndarray((128, 2048), dtype=a.dtype, buffer=nl.sbuf)
        for j in range(4):
            bank = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
            for k in range(4):
                nisa.nc_matmul(dst=bank, stationary=rows[:, k, :], moving=right[:, k, j * 512 : (j + 1) * 512])
            nisa.tensor_copy(dst=done[:, j * 512 : (j + 1) * 512], src=bank)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=done)
    return out
'''


def test_a_task_of_a_user_has_parts_where_it_says_so(tmp_path):
    wrong = MATMUL.replace("right[:, k, j * 512", "right[:, k if n < 4096 else 3 - k, j * 512")
    assert wrong != MATMUL
    found = []
    for part in ("", ', part=lambda arrays, index: {"a": arrays["a"][index], "b": arrays["b"]}'):
        task = tmp_path / "product.py"
        task.write_text(ROWS_TASK.format(part=part))
        for text in (MATMUL, wrong):
            record = _judged(tmp_path, text, str(task), 4096, layout="", check=(128, 256))
            found.append((record["passed"], record["times"][0]["values"] if record["passed"] else record["stage"]))
    assert found == [(True, "not judged"), (True, "not judged"), (True, "part"), (False, "times")]


def test_cheap_sizes_are_judged_whole(tmp_path):
    record = nki_hf.judge(
        "nki_hf/tasks/kernels/rows.py:softmax_best", "softmax", check=(128,), at=(1024,), chip=("trn2", "trn1")
    )
    assert [row["values"] for row in record["times"]] == ["judged", "judged"]
