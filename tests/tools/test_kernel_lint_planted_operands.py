"""Refused operands, each beside the nearest one that is allowed: in the kernel, in a helper, in a helper of another module.

The source of each is the documents or the stubs; see the rules.
"""

import pytest
from planted_kernels import HEAD, KERNEL, planted, rules_of
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.kernel_lint import RULES

BANK = "bank = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)\n"
BF16 = "half = nl.ndarray((128, 4, 3), dtype=nl.bfloat16, buffer=nl.psum)\n"
WIDE = "wide = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)\n"
LEFT = "left = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)\n"
LEFT16 = LEFT.replace("float32", "bfloat16")
INTS = "ints = nl.ndarray((128, 512), dtype=nl.int32, buffer=nl.sbuf)\n"
BITS = "bits = nl.ndarray((128, 512), dtype=nl.uint8, buffer=nl.sbuf)\n"
BOUND = "bound = nl.ndarray((128, 1), dtype=nl.int32, buffer=nl.sbuf)\n"
FP32 = "bound = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.sbuf)\n"
RANGE = "nisa.range_select(dst=wide, on_true_tile=wide, comp_op0=nl.less, comp_op1=nl.less, bound0=bound, bound1=bound)"
PICK = "nisa.tensor_copy_predicated(dst=wide, src=wide, predicate={})"
REDUCE = "nisa.select_reduce(dst=wide, predicate={}, on_true=wide, on_false=0.0)"
MATMUL = "nisa.nc_matmul(dst={}, stationary={}, moving={})"
TURN = "nisa.nc_transpose(dst={}, data={}, engine=nisa.engine.{})"
ADD = "nisa.tensor_tensor(dst=wide, data1={}, data2={}, op=nl.add)"
HALF = "flat = nl.ndarray((128, 40), dtype=nl.bfloat16, buffer=nl.psum)\n"
COPY = "nisa.tensor_copy(dst={}, src={})"
SUM = "nisa.activation_reduce(dst=wide, op=nl.exp, data=wide, reduce_op=nl.add, reduce_res=one)"

PLANTED_OPERANDS = [
    # rule, what breaks it, the nearest form that does not
    ("psum-words", BF16 + LEFT16 + TURN.format("half[0:128, 1, 0:3]", "left[0:3, 0:128]", "tensor"),
     BF16.replace("4, 3", "4, 4") + LEFT16 + TURN.format("half[0:128, 1, 0:4]", "left[0:4, 0:128]", "tensor")),
    ("psum-words", BANK.replace("float32", "float16") + WIDE + "nisa.tensor_copy(dst=bank[0:128, 1:3], src=wide[0:128, 0:2])",
     BANK.replace("float32", "float16") + WIDE + "nisa.tensor_copy(dst=bank[0:128, 2:4], src=wide[0:128, 0:2])"),
    ("psum-words", "n = 3\n" + BANK.replace("float32", "bfloat16") + WIDE
     + "nisa.tensor_copy(dst=bank[:, nl.ds(0, n)], src=wide[:, 0:3])",
     "n = 4\n" + BANK.replace("float32", "bfloat16") + WIDE + "nisa.tensor_copy(dst=bank[:, nl.ds(0, n)], src=wide[:, 0:4])"),
    ("matmul-place", LEFT + WIDE + MATMUL.format("wide", "left", "wide"), LEFT + WIDE + BANK + MATMUL.format("bank", "left",
     "wide")),
    ("matmul-place", LEFT + BANK + MATMUL.format("bank", "left", "bank"), LEFT + WIDE + BANK + MATMUL.format("bank", "left",
     "wide")),
    ("matmul-size", LEFT + WIDE + BANK + MATMUL.format("bank[0:64]", "left", "wide"),
     LEFT + WIDE + BANK + MATMUL.format("bank[0:64]", "left[:, 0:64]", "wide")),
    ("matmul-size", LEFT + WIDE + BANK + MATMUL.format("bank[:, 0:256]", "left", "wide"),
     LEFT + WIDE + BANK + MATMUL.format("bank[:, 0:256]", "left", "wide[:, 256:512]")),
    ("matmul-size", LEFT + WIDE + BANK + MATMUL.format("bank", "left[0:64]", "wide"),
     LEFT + WIDE + BANK + MATMUL.format("bank", "left[0:64]", "wide[0:64]")),
    ("matmul-size", WIDE + BANK + MATMUL.format("bank", "wide", "wide"), WIDE + BANK + MATMUL.format("bank", "wide[:, 0:128]",
     "wide")),
    ("transpose-size", WIDE + LEFT + TURN.format("left", "wide[:, 0:64]", "vector"),
     WIDE + LEFT + TURN.format("left[0:32, 0:32]", "wide[0:32, 0:32]", "vector")),
    ("transpose-size", BANK + LEFT + TURN.format("bank[0:128, 0:64]", "left", "tensor"),
     BANK + LEFT + TURN.format("bank[0:128, 0:128]", "left", "tensor")),
    ("operand-dtype", BOUND + WIDE + RANGE, FP32 + WIDE + RANGE),
    ("operand-dtype", WIDE + PICK.format("wide"), WIDE + BITS + PICK.format("bits")),
    ("operand-dtype", WIDE + REDUCE.format("wide"), WIDE + BITS + REDUCE.format("bits")),
    ("copied-dtype", WIDE + INTS + BITS + "nisa.tensor_copy_predicated(dst=wide, src=ints, predicate=bits)",
     WIDE + BITS + PICK.format("bits")),
    ("reduce-axis", WIDE + FP32 + "nisa.tensor_reduce(dst=bound, op=nl.add, data=wide, axis=0)",
     WIDE + FP32 + "nisa.tensor_reduce(dst=bound, op=nl.add, data=wide, axis=1)"),
    ("reduce-axis", WIDE + FP32 + "nisa.tensor_reduce(dst=bound, op=nl.add, data=wide, axis=(0, 1))",
     WIDE + FP32 + "nisa.tensor_reduce(dst=bound, op=nl.add, data=wide, axis=(1,))"),
    ("reduce-axis", WIDE + FP32 + "nisa.tensor_reduce(dst=bound, op=nl.add, data=wide, axis=-2)",
     WIDE + FP32 + "nisa.tensor_reduce(dst=bound, op=nl.add, data=wide, axis=-1)"),
    ("gpsimd-psum", BANK + WIDE + "nisa.tensor_copy(dst=wide, src=bank, engine=nisa.engine.gpsimd)",
     BANK + WIDE + "nisa.tensor_copy(dst=wide, src=bank, engine=nisa.engine.vector)"),
    ("gpsimd-psum", BANK + "nisa.iota(dst=bank, pattern=[[1, 512]])", WIDE + "nisa.iota(dst=wide, pattern=[[1, 512]])"),
    ("gpsimd-psum", BANK + "nisa.memset(dst=bank, value=0.0, engine=nisa.engine.gpsimd)",
     BANK + "nisa.memset(dst=bank, value=0.0)"),
    ("gpsimd-psum", BANK + WIDE + "where = nisa.engine.gpsimd\nnisa.tensor_copy(dst=wide, src=bank, engine=where)",
     BANK + WIDE + "where = nisa.engine.vector\nnisa.tensor_copy(dst=wide, src=bank, engine=where)"),
    ("reduce-axis", WIDE + FP32 + "which = 0\nnisa.tensor_reduce(dst=bound, op=nl.add, data=wide, axis=which)",
     WIDE + FP32 + "which = 1\nnisa.tensor_reduce(dst=bound, op=nl.add, data=wide, axis=which)"),
    ("psum-words", BF16 + LEFT16 + "rows = 3\nfor c in range(4):\n    "
     + TURN.format("half[0:128, c, 0:rows]", "left[0:3, 0:128]", "tensor"),
     BF16.replace("4, 3", "4, 4") + LEFT16 + "rows = 4\nfor c in range(4):\n    "
     + TURN.format("half[0:128, c, 0:rows]", "left[0:4, 0:128]", "tensor")),
    ("matmul-place", LEFT + WIDE + "mm = nisa.nc_matmul\nmm(dst=wide, stationary=left, moving=wide)",
     LEFT + WIDE + BANK + "mm = nisa.nc_matmul\nmm(dst=bank, stationary=left, moving=wide)"),
    ("both-in-psum", BANK + WIDE + ADD.format("bank", "bank"), BANK + WIDE + ADD.format("bank", "wide")),
    ("both-in-psum",
     BANK + WIDE + "nisa.scalar_tensor_tensor(dst=wide, data=bank, op0=nl.add, operand0=1.0, op1=nl.add, operand1=bank)",
     BANK + WIDE + "nisa.scalar_tensor_tensor(dst=wide, data=bank, op0=nl.add, operand0=1.0, op1=nl.add, operand1=wide)"),
    ("engine-choice", WIDE + "nisa.memset(dst=wide, value=0.0, engine=nisa.engine.tensor)",
     WIDE + "nisa.memset(dst=wide, value=0.0)"),
    ("engine-choice", WIDE + ADD.format("wide", "wide").replace("op=", "engine=nisa.engine.scalar, op="),
     WIDE + ADD.format("wide", "wide").replace("op=", "engine=nisa.engine.vector, op=")),
    ("hbm-operand", WIDE + "far = nl.ndarray((128, 512), nl.float32, nl.hbm)\n" + ADD.format("far", "wide"),
     WIDE + ADD.format("wide", "wide")),
    ("partition-start", WIDE + "nisa.memset(dst=wide[5:37], value=0.0)", WIDE + "nisa.memset(dst=wide[32:64], value=0.0)"),
    ("partition-start", WIDE + "nisa.memset(dst=wide[32:96, 0:4], value=0.0)",
     WIDE + "nisa.memset(dst=wide[64:128, 0:4], value=0.0)"),
    ("tile-size", "a = nl.ndarray((TILE + 1, 8), dtype=nl.float32, buffer=nl.sbuf)",
     "a = nl.ndarray((TILE, 8), dtype=nl.float32)"),
    ("tile-size", "a = nl.ndarray((TILE, 4097), dtype=nl.float32, buffer=nl.psum)",
     "a = nl.ndarray((TILE, 4096), nl.float32, nl.psum)"),
    ("psum-in-dma", BANK + "nisa.dma_copy(dst=out, src=bank)", WIDE + "nisa.dma_copy(dst=out, src=wide)"),
    # Places that only the turns of a loop show.
    ("psum-words", HALF + LEFT16 + "rows = 5\nfor c in range(4):\n    "
     + TURN.format("flat[0:128, c * rows : (c + 1) * rows]", "left[0:5, 0:128]", "tensor"),
     HALF + LEFT16 + "rows = 6\nfor c in range(4):\n    "
     + TURN.format("flat[0:128, c * rows : (c + 1) * rows]", "left[0:6, 0:128]", "tensor")),
    ("psum-words", HALF + WIDE + "for c in nl.affine_range(4):\n    first = 5 * c\n    "
     + COPY.format("flat[:, first : first + 4]", "wide[:, 0:4]"),
     HALF + WIDE + "for c in nl.affine_range(4):\n    first = 6 * c\n    "
     + COPY.format("flat[:, first : first + 4]", "wide[:, 0:4]")),
    ("psum-words", HALF + WIDE + "for c in range(0, 15, 5):\n    " + COPY.format("flat[:, c : c + 4]", "wide[:, 0:4]"),
     HALF + WIDE + "for c in range(0, 16, 4):\n    " + COPY.format("flat[:, c : c + 4]", "wide[:, 0:4]")),
    ("psum-words", HALF + WIDE + "for c in range(4):\n    " + COPY.format("flat[:, 5 * c : 5 * c + 4]", "wide[:, 0:4]"),
     HALF + WIDE + "for c in range(4):\n    if c % 2 == 0:\n        "
     + COPY.format("flat[:, 5 * c : 5 * c + 4]", "wide[:, 0:4]")),
    ("psum-words", HALF + WIDE + "for c in range(4):\n    " + COPY.format("flat[:, 5 * c : 5 * c + 4]", "wide[:, 0:4]"),
     HALF + WIDE + "for c in range(4):\n    if c > 0:\n        break\n    "
     + COPY.format("flat[:, 5 * c : 5 * c + 4]", "wide[:, 0:4]")),
    ("partition-start", WIDE + "for c in range(8):\n    nisa.memset(dst=wide[16 * c : 16 * (c + 1), 0:4], value=0.0)",
     WIDE + "for c in range(4):\n    nisa.memset(dst=wide[32 * c : 32 * (c + 1), 0:4], value=0.0)"),
    ("matmul-size", LEFT + WIDE + BANK + "for c in range(4):\n    "
     + MATMUL.format("bank[:, 128 * c : 128 * (c + 1)]", "left", "wide[:, 64 * c : 64 * (c + 1)]"),
     LEFT + WIDE + BANK + "for c in range(4):\n    "
     + MATMUL.format("bank[:, 128 * c : 128 * (c + 1)]", "left", "wide[:, 128 * c : 128 * (c + 1)]")),
    # Parts that are no slices.
    ("psum-words", HALF + WIDE + COPY.format("flat[0:128, 3]", "wide[:, 0:1]"),
     HALF.replace("bfloat16", "float32") + WIDE + COPY.format("flat[0:128, 3]", "wide[:, 0:1]")),
    ("psum-words", BF16 + WIDE + COPY.format("half[0:128, 0:4, 2]", "wide[:, 0:4]"), BF16 + WIDE
     + COPY.format("half", "wide[:, 0:12]")),
    ("psum-words", HALF + WIDE + COPY.format("flat[:, 0:8:2]", "wide[:, 0:4]"), HALF + WIDE
     + COPY.format("flat[:, 0:8]", "wide[:, 0:8]")),
    ("psum-words", HALF + WIDE + COPY.format("flat.ap(pattern=[[40, 128], [2, 4]], offset=0)", "wide[:, 0:4]"),
     HALF + WIDE + COPY.format("flat.ap(pattern=[[40, 128], [2, 4], [1, 2]], offset=0)", "wide[:, 0:8]")),
    ("psum-words", HALF + WIDE + COPY.format("flat.ap(pattern=[[40, 128], [1, 4]], offset=43)", "wide[:, 0:4]"),
     HALF + WIDE + COPY.format("flat.ap(pattern=[[40, 128], [1, 4]], offset=44)", "wide[:, 0:4]")),
    ("psum-words", HALF + WIDE + "part = flat[:, 1:9]\n" + COPY.format("part", "wide[:, 0:8]"),
     HALF + WIDE + "part = flat[:, 2:10]\n" + COPY.format("part", "wide[:, 0:8]")),
    ("psum-words", WIDE + "one = nl.ndarray((128, 1), nl.bfloat16, nl.psum)\n" + SUM,
     WIDE + "one = nl.ndarray((128, 1), nl.float32, nl.psum)\n" + SUM),
]  # fmt: skip

GIVEN = [
    # rule, the helper, its call, the call that breaks nothing
    ("gpsimd-psum", "def move(to, what, on):\n    nisa.tensor_copy(dst=to, src=what, engine=on)",
     BANK + WIDE + "move(wide, bank, nisa.engine.gpsimd)", BANK + WIDE + "move(wide, bank, nisa.engine.vector)"),
    ("gpsimd-psum", "def move(to, what, on):\n    nisa.tensor_copy(dst=to, src=what, engine=on)",
     BANK + WIDE + "move(to=wide, what=bank, on=nisa.engine.gpsimd)", BANK + WIDE
     + "move(to=wide, what=wide, on=nisa.engine.gpsimd)"),
    ("reduce-axis", "def least(to, what, axis):\n    nisa.tensor_reduce(dst=to, op=nl.minimum, data=what, axis=axis)",
     WIDE + FP32 + "least(bound, wide, 0)", WIDE + FP32 + "least(bound, wide, 1)"),
    ("reduce-axis", "def least(to, what, axis):\n    nisa.tensor_reduce(dst=to, op=nl.minimum, data=what, axis=axis)",
     WIDE + FP32 + "axis = 0\nleast(bound, wide, axis)", WIDE + FP32 + "axis = -1\nleast(bound, wide, axis)"),
    ("psum-words", "def fill(to, many):\n    nisa.memset(dst=to[:, 0:many], value=0.0)", HALF + "fill(flat, 5)",
     HALF + "fill(flat, 6)"),
    ("psum-words", "def fill(to, many):\n    nisa.memset(dst=to[:, 0:many], value=0.0)", HALF + "fill(flat, 5)",
     BANK + "fill(bank, 5)"),
    ("both-in-psum", "class Pair(nl.NKIObject):\n    one: object\n    other: object", BANK + WIDE
     + "pair = Pair(bank, other=bank)\n"
     + ADD.format("pair.one", "pair.other"), BANK + WIDE + "pair = Pair(bank, other=wide)\n"
     + ADD.format("pair.one", "pair.other")),
]  # fmt: skip

GUARDED = [
    # what a parameter or a loop decides is not reached in every turn
    ("def fill(to, many):\n    if many % 2 == 0:\n        nisa.memset(dst=to[:, 0:many], value=0.0)", HALF + "fill(flat, 5)"),
    (
        "def fill(to, many):\n    if many % 2 == 1:\n        return\n    nisa.memset(dst=to[:, 0:many], value=0.0)",
        HALF + "fill(flat, 5)",
    ),
    (
        "def fill(to, many):\n    odd = many % 2\n    if odd == 0:\n        nisa.memset(dst=to[:, 0:many], value=0.0)",
        HALF + "fill(flat, 5)",
    ),
    (
        "def fill(to, many):\n    for n in range(4):\n        nisa.memset(dst=to[:, 2 * n : 2 * n + many], value=0.0)",
        HALF + "fill(flat, 4)",
    ),
]


@pytest.mark.parametrize("place", ["kernel", "helper", "module"])
@pytest.mark.parametrize(("rule", "body"), [(rule, bad) for rule, bad, _ in PLANTED_OPERANDS if bad is not None])
def test_each_refused_operand_is_found_wherever_it_stands(rule, body, place, tmp_path):
    file, wanted = planted(place, body, tmp_path)
    assert rule in rules_of(file, wanted)


def _with_helper(folder, helper, body):
    inserted = "\n    ".join(body.split("\n"))
    (folder / "kernel.py").write_text(f"{HEAD}\n\n{helper}\n{KERNEL.replace('# BODY', inserted)}")
    return rules_of(folder / "kernel.py")


@pytest.mark.parametrize("place", ["kernel", "helper", "module"])
@pytest.mark.parametrize(("rule", "body"), [(rule, good) for rule, _, good in PLANTED_OPERANDS])
def test_the_nearest_allowed_operand_is_not_found(rule, body, place, tmp_path):
    file, wanted = planted(place, body, tmp_path)
    assert {name for name in rules_of(file, wanted) if RULES[name].refused} == set()


@pytest.mark.parametrize(("rule", "helper", "bad", "good"), GIVEN)
def test_what_is_given_to_a_helper_or_an_object_is_followed(rule, helper, bad, good, tmp_path):
    assert rule in _with_helper(tmp_path, helper, bad)
    assert {name for name in _with_helper(tmp_path, helper, good) if RULES[name].refused} == set()


@pytest.mark.parametrize(("helper", "body"), GUARDED)
def test_what_a_condition_leaves_out_is_not_found(helper, body, tmp_path):
    assert {name for name in _with_helper(tmp_path, helper, body) if RULES[name].refused} == set()


NAMED_PARTS = """
import nki
import nki.isa as nisa
import nki.language as nl


def product(dst, left, wide, keys):
    nisa.nc_matmul(dst=dst, stationary=left, moving=wide[:, keys])


@nki.jit
def kernel(q, k):
    left = nl.ndarray((128, 128), nl.bfloat16, buffer=nl.sbuf)
    wide = nl.ndarray((128, 2048), nl.bfloat16, buffer=nl.sbuf)
    out = nl.ndarray((128, 2048), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=left, src=q)
    nisa.dma_copy(dst=wide, src=k)
    rows = nl.ds(0, {rows})
    for j in range(2):
        keys = slice(j * 512, (j + 1) * 512)
        scores = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=scores, stationary=left[:, rows], moving=wide[:, keys])
        product(scores, left, wide, keys)
        held = nl.ndarray((128, 512), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=held, src=scores)
        nisa.dma_copy(dst=out[:, keys], src=held)
    for keys in (slice(0, 512), slice(512, 1024)):
        scores = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=scores, stationary=left, moving=wide[:, keys])
    return out
"""


def test_a_name_that_holds_a_part_of_an_axis_is_no_single_place(tmp_path):
    """`keys = slice(...)`, `rows = nl.ds(...)`, a loop over slices, a parameter: NumPy's and NKI's ways to say a part."""
    path = tmp_path / "kernel.py"
    path.write_text(NAMED_PARTS.format(rows=128))
    done = CliRunner().invoke(app, ["lint", str(path)])
    assert done.exit_code == 0, done.stdout
