"""Instructions that are alike are checked once: the events and the tapes are those of launches that check every one."""

import numpy as np
import pytest

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim.run import alike
from nki_hf.sim.run.play import BadTape, played
from nki_hf.tasks import load_task
from nki_hf.tools.judging import client
from nki_hf.tools.judging.programs import recorded
from nki_hf.tools.judging.request import GIB, child, traces
from nki_hf.tools.judging.times import stream_of

HEAD = '''
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    """x [n, 256] float32."""
    n, width = x.shape
    out = nl.ndarray((n, width), dtype=x.dtype, buffer=nl.shared_hbm)
    left = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    right = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.sbuf)
    nisa.memset(dst=left, value=1.0)
    nisa.memset(dst=right, value=1.0)
    for turn in range(n // 128):
        tile = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[turn * 128 : (turn + 1) * 128])
'''
END = """
        nisa.dma_copy(dst=out[turn * 128 : (turn + 1) * 128], src=tile)
    return out
"""
BODIES = {
    "products onto tiles that are partly, wholly and otherwise written": """
        product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=product[:, 0:256], stationary=left[:, 0:128], moving=right[:, 0:256])
        nisa.nc_matmul(dst=product, stationary=left[:, 128:256], moving=right)
        nisa.nc_matmul(dst=product, stationary=left[:, 128:256], moving=right)
        nisa.tensor_copy(dst=product[:, 0:128], src=left[:, 0:128])
        nisa.nc_matmul(dst=product, stationary=left[:, 0:128], moving=right, accumulate=False)
        nisa.nc_matmul(dst=product[:, 0:256], stationary=left[:, 0:128], moving=right[:, 0:256])
        nisa.tensor_copy(dst=tile, src=product[:, 0:256])
        columns = (512, 256)[turn % 2]
        sum_of_two = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        nisa.tensor_copy(dst=sum_of_two[:, 0:columns], src=left[:, 0:columns])
        nisa.nc_matmul(dst=sum_of_two, stationary=left[:, 0:128], moving=right)
""",
    "tiles that alias, and others of their form": """
        other = nl.ndarray((128, width), dtype=nl.float32, buffer=nl.sbuf, name="other")
        for data in (tile, other):
            nisa.tensor_tensor(dst=other, data1=data, data2=tile, op=nl.add)
            nisa.scalar_tensor_tensor(dst=data, data=data, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=other)
""",
    "orders that the kernel asks for": """
        first = nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        for _ in range(2 + turn):
            second = nisa.activation(dst=tile, op=nl.exp, data=tile)
            if turn:
                second.depends_on(first)
        with nl.no_reorder():
            for engine in (nisa.engine.vector, nisa.engine.gpsimd):
                nisa.tensor_copy(dst=tile, src=tile, engine=engine)
""",
    "a loop of run time between": """
        def body(index):
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)

        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)
        nl.fori_loop(0, 2, body)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)
""",
}


def launches(tmp_path, body, sizes=(256, 512)):
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + body + END)
    return path, recorded(str(path), str(task(tmp_path)), sizes, [get_chip("trn2")])


def task(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(
        "from nki_hf.tasks import FLOAT, Task\n"
        "TASK = Task(name='same', about='', arrays=lambda n: {'x': ((n, 256), FLOAT)}, reference=lambda x: x,"
        " flops=lambda n: n, check=(256,), at=(512,), dtype='float32')\n"
    )
    return path


def content(events):
    def region(item):
        buffer = item.buffer
        memory = (buffer.number, buffer.space, buffer.name, buffer.shape, str(buffer.dtype), buffer.core, buffer.role)
        place = (buffer.address, buffer.file, buffer.line)
        return (*memory, *place, str(item.dtype), item.offset, item.shape, item.strides, item.indirect)

    return [
        (
            event.index,
            event.core,
            event.engine,
            event.queue,
            event.opcode,
            [*map(region, event.reads)],
            [*map(region, event.writes)],
            event.file,
            event.line,
            dict(event.attrs),
        )
        for event in events
    ]


def played_whole(monkeypatch, *given):
    with monkeypatch.context() as patched:
        patched.setattr(alike.Alike, "possible", staticmethod(lambda machine: False))
        return stream_of(*given)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_events_are_those_of_instructions_that_were_all_checked(tmp_path, monkeypatch, body):
    _, found = launches(tmp_path, body)
    for asked, trace in zip(found.launches, found.played, strict=True):
        given = asked, trace, get_chip("trn2"), 1
        short, whole = stream_of(*given)[0], played_whole(monkeypatch, *given)[0]
        assert content(short.events) == content(whole.events)
        assert [buffer.name for buffer in short.run.buffers] == [buffer.name for buffer in whole.run.buffers]


@pytest.mark.parametrize(("name", "layout"), [("v7", ""), ("v11", ""), ("flash_prefill", ""), ("flash_const_max", "")])
def test_events_of_our_kernels_are_those_of_instructions_that_were_all_checked(monkeypatch, name, layout):
    task = "attention_unscaled" if name.startswith("v") else "attention_causal"
    found = recorded(name, task, (1024,), [get_chip("trn2")], layout=layout)
    given = found.launches[0], found.played[0], get_chip("trn2"), 1
    assert content(stream_of(*given)[0].events) == content(played_whole(monkeypatch, *given)[0].events)


def test_most_instructions_of_a_loop_are_not_checked_again(tmp_path, monkeypatch):
    _, found = launches(tmp_path, BODIES["tiles that alias, and others of their form"], (1024,))
    checked, check = [], alike.Alike._note
    monkeypatch.setattr(alike.Alike, "_note", lambda self, *given: (checked.append(given), check(self, *given)))
    events = stream_of(found.launches[0], found.played[0], get_chip("trn2"), 1)[0].events
    assert len(checked) < len(events) / 2


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("        nisa.tensor_copy(dst=tile, src=left[:, 0 : (256, 256, 128, 256)[turn]])\n", "shape"),
        (
            "        turned = nl.ndarray((128, 512), dtype=nl.bfloat16, buffer=nl.psum)\n"
            "        first = (0, 2, 3, 4)[turn]\n"
            "        nisa.nc_transpose(dst=turned[:, first : first + 128], data=left[:, 0:128])\n",
            "placement",
        ),
    ],
)
def test_what_only_a_later_turn_breaks_is_a_fault(tmp_path, monkeypatch, body, kind):
    _, found = launches(tmp_path, body, (256, 512))
    stream_of(found.launches[0], found.played[0], get_chip("trn2"), 1)
    faults = []
    for play in (stream_of, lambda *given: played_whole(monkeypatch, *given)):
        with pytest.raises(KernelFault) as caught:
            play(found.launches[1], found.played[1], get_chip("trn2"), 1)
        faults.append(caught.value.record)
    assert faults[0].kind == kind
    assert faults[0] == faults[1]


def test_the_first_partition_is_looked_at_in_every_turn(tmp_path):
    first = "(0, 32, 16, 64)[turn]"
    _, found = launches(tmp_path, f"        nisa.memset(dst=tile[{first} : {first} + 20], value=0.0)\n")
    options = SimOptions(chip=get_chip("trn2"), values=False)
    for asked, trace in zip(found.launches, found.played, strict=True):
        given = {"x": np.broadcast_to(np.float32(0), (asked["size"], 256))}
        if asked["size"] == 256:
            launch(played(trace["tape"], ["x"]), (), given, options=options)
            continue
        with pytest.raises(KernelFault, match="partition 16"):
            launch(played(trace["tape"], ["x"]), (), given, options=options)


def test_a_tape_may_gather_more_rows_than_its_table_has(tmp_path):
    """As embeddings do; the judge said of such a kernel that its tape was tampered with."""
    body = """
        index = nl.ndarray((128, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=index, value=3)
        nisa.dma_copy(dst=tile, src=x[n - 16 : n].vector_select(0, index))
"""
    _, found = launches(tmp_path, body, (256,))
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    result = launch(played(found.played[0]["tape"], ["x"]), (x,), options=SimOptions(chip=get_chip("trn2")))
    np.testing.assert_array_equal(result.outputs[0], np.broadcast_to(x[243], (256, 256)))


def test_a_tape_that_reaches_beyond_its_memory_beside_its_indices_is_none(tmp_path):
    body = """
        index = nl.ndarray((128, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.memset(dst=index, value=3)
        nisa.dma_copy(dst=tile, src=x.vector_select(0, index))
"""
    _, found = launches(tmp_path, body, (256,))
    tape = found.played[0]["tape"]
    for number, row in enumerate(tape["tensors"]):
        if row[5] is not None:
            tape["tensors"][number] = [*row[:3], [row[3][0], 1 << 40], *row[4:]]
    with pytest.raises(BadTape, match="outside of its allocation"):
        launch(played(tape, ["x"]), (np.zeros((256, 256), np.float32),), options=SimOptions(chip=get_chip("trn2")))


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_tape_is_the_same_whether_the_kernels_process_executes_every_instruction_or_not(tmp_path, body):
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + body + END)
    (asked,) = traces(load_task(str(task(tmp_path))), "float32", {}, [(512, "trn2")], {}, str(path), "", 1)
    both = [{**asked, "checked": checked} for checked in (True, False)]
    answer = client.ask({"judge": None, "child": child(str(path), "", 1, both), "seconds": 60.0, "memory": GIB})
    assert answer["error"] is None
    first, second = answer["traces"]
    assert first["tape"] == second["tape"]
