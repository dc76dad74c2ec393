"""Every rule of the kernel lint: a small kernel that breaks it, and the documented form that must pass."""

import pytest
from test_kernel_lint_followed import FOLLOWED
from test_kernel_lint_planted import PLANTED_FORMS
from test_kernel_lint_planted_operands import PLANTED_OPERANDS
from test_kernel_lint_values import PLANTED_VALUES

from nki_hf.tools.kernel_lint import RULES, VERSIONS, lint_source

CLEAN = '''
from enum import Enum

import math
import random

from nki_hf.lang import nisa, nki, nl

TILE = 128
NAMES = ["a", "b"]


class Kind(Enum):
    full = 1


class Config(nl.NKIObject):
    rows: int = 1


def part(tile):
    nisa.memset(dst=tile, value=0.0)


def same(tile):
    part(tile)
    return tile


def twice(tile, count=2):
    part(tile)
    return count


@nki.jit
def kernel(x, scale=1.0, shape=(1, 2)):
    """Doc."""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((TILE, 8), dtype=nl.float32, buffer=nl.sbuf)
    ints = nl.ndarray((TILE, 8), dtype=nl.int32, buffer=nl.sbuf)
    bank = nl.ndarray((TILE, 8), dtype=nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=tile, src=x)
    # BODY
    nisa.dma_copy(dst=out, src=tile)
    return out
'''

SELECT = "nisa.range_select(dst=tile, on_true_tile=tile, comp_op0=nl.less, comp_op1=nl.less, bound0=tile, bound1=tile, "
AFFINE = "nisa.affine_select(tile, [[1, 8]], 1, tile, 0.0"

BODIES = {
    # rule: [bodies that break it], [documented forms that do not]
    "identity": (["ok = scale is shape", "ok = scale is not True"], ["ok = scale == None", "ok = scale is None"]),
    "identity-of-none": (["ok = scale is None", "ok = scale is not None"], ["ok = scale == None", "ok = scale is shape"]),
    "helper-default": (["ok = twice(tile)"], ["ok = twice(tile, 2)", "ok = twice(tile, count=2)"]),
    "hoisted-attribute": (["ok = scale != None and same(tile).shape[0] > 1", "ok = same(tile).shape if scale else 0"],
                          ["ok = scale != None and tile.shape[0] > 1", "ok = same(tile).shape"]),
    "host-call": (["ok = random.random()"], ["ok = math.floor(1.5)"]),
    "unknown-name": (["nisa.tensor_frobnicate(dst=tile)", "ok = nl.flloat32", "ok = nisa.engine.vectr", "nki.trace_all(x)"],
                     ["ok = nl.float32", "ok = nisa.engine.vector", "ok = nl.tile_size.pmax", "ok = nl.arange"]),
    "enum-operator": (["ok = scale < Kind.full", "ok = Kind.full + 1"], ["ok = Kind.full == scale", "ok = Kind.full != scale"]),
    "wide-integer": (["ok = 2147483648"], ["ok = 2147483647"]),
    "dict-key": (["ok = {1: 2}", "ok = {nl.float32: 1}", "ok = {}\n    ok[1] = 2", "ok = dict()\n    ok[1, 2] = 3"],
                 ["ok = {'a': 1}", "ok = dict()\n    ok['a'] = 1", "ok = {}\n    for name in NAMES:\n        ok[name] = 1",
                  "ok = [1, 2]\n    ok[0] = 3"]),
    "environment": (["ok = os.environ['X']"], []),
    "positional": (["nisa.memset(tile, 0.0)", "wipe = nisa.memset\n    wipe(tile, 0.0)", "i = nisa\n    i.memset(tile, 0.0)"],
                   ["nisa.memset(dst=tile, value=0.0)", "wipe = nisa.memset\n    wipe(dst=tile, value=0.0)"]),
    "result-used": (["ok = nisa.memset(dst=tile, value=0.0)"],
                    ["nisa.memset(dst=tile, value=0.0).depends_on()", "ok = nisa.get_nc_version()"]),
    "raw-enum": (["nisa.tensor_copy(dst=tile, src=tile, engine=1)", "nisa.dma_copy(dst=out, src=tile, dge_mode=2)"],
                 ["nisa.tensor_copy(dst=tile, src=tile, engine=nisa.engine.vector)",
                 "nisa.dma_copy(dst=out, src=tile, priority=2)"]),
    "string-buffer": (["ok = nl.ndarray((1, 1), dtype=nl.float32, buffer='sbuf')", "ok = nl.zeros((1, 1), nl.float32, 'psum')",
                       "ok = nl.full((1, 1), 0.0, nl.float32, 'sbuf')"],
                      ["ok = nl.ndarray((1, 1), dtype=nl.float32)", "ok = nl.ndarray((1, 1), nl.float32, nl.sbuf, name='w')"]),
    "fill-type": (["nisa.memset(dst=ints, value=2.0)",
                   "four = nl.ndarray((1, 8), dtype=nl.float8_e4m3fn_x4)\n    nisa.memset(dst=four, value=1)"],
                  ["nisa.memset(dst=ints, value=2)", "nisa.memset(dst=tile[0:1], value=1.0)",
                   "four = nl.ndarray((1, 8), dtype=nl.float8_e4m3fn_x4)\n    nisa.memset(dst=four, value=0)"]),
    "fill-integer": (["nisa.memset(dst=tile, value=0)"], ["nisa.memset(dst=tile, value=0.0)",
            "nisa.memset(dst=ints, value=0)"]),
    "view-method": (["ok = tile.permute((1, 0))", "ok = x.slice(0, 0, 1)", "ok = tile[0:1].expand_dim(1)",
                     "ok = x.reshape((8, TILE)).permute((1, 0))", "ok = x[0].reshape((8, TILE))[0:2].flatten_dims(0, 1)",
                     "ok = tile.ap(pattern=[[8, 1], [1, 8]]).permute((1, 0))"],
                    ["ok = tile.reshape((8, TILE))", "ok = tile.ap(pattern=[[8, TILE], [1, 8]])",
                    "ok = Config()\n    ok.select(1)"]),
    "psum-in-dma": (
        ["nisa.dma_copy(dst=out, src=bank[0:1])",
        "view = bank[0:1]\n    half = view[:, 0:4]\n    nisa.dma_copy(dst=out, src=half)",
         "nisa.dma_compute(dst=out, srcs=[tile, bank], reduce_op=nl.add)", "nisa.dma_copy(out, bank)",
         "work = {}\n    work['scores'] = bank\n    nisa.dma_copy(dst=out, src=work['scores'])",
         "work = {'scores': bank}\n    nisa.dma_copy(dst=out, src=work['scores'][0:1])",
         "banks = []\n    banks.append(bank)\n    nisa.dma_copy(dst=out, src=banks[0])",
         "banks = [bank, bank]\n    for one in banks:\n        nisa.dma_copy(dst=out, src=one)",
         "banks = [nl.ndarray((1, 8), nl.float32, nl.psum) for _ in range(2)]\n    nisa.dma_copy(dst=out, src=banks[1])",
         "one, two = tile, bank\n    nisa.dma_copy(dst=out, src=two)", "nisa.dma_copy(dst=out, src=same(bank))",
         "copy = nisa.dma_copy\n    copy(dst=out, src=bank)",
         "either = bank if scale else tile\n    nisa.dma_copy(dst=out, src=either)"],
        ["nisa.tensor_copy(dst=tile, src=bank)",
        "work = {}\n    work['scores'] = tile\n    nisa.dma_copy(dst=out, src=work['scores'])",
         "either = bank if scale else tile\n    nisa.tensor_copy(dst=tile, src=either)"],
    ),
    "output-buffer": (
        ["return tile", "return (out, tile)", "return out[0], bank", "return tuple([tile])", "return [out, bank]",
         "return tuple((out, tile))", "outs = []\n    outs.append(tile)\n    return tuple(outs)",
         "outs = []\n    for i in range(2):\n        outs.append(nl.zeros((1, 1), nl.int8, nl.private_hbm))\n    return outs",
         "outs = [nl.ndarray((1, 1), nl.float32, nl.hbm) for _ in range(2)]\n    return tuple(outs)",
         "outs = [tile]\n    outs += [bank]\n    return tuple(outs)",
         "outs = [out]\n    outs.append(tile)\n    return tuple(outs)",
         "outs = []\n    outs.extend([tile])\n    return tuple(outs)",
         "outs = []\n    outs.insert(0, tile)\n    return outs[0]", "outs = (tile,)\n    return outs",
         "outs = tuple([tile])\n    again = outs\n    return again", "return (out,) + (tile,)",
         "return tuple(t for t in [tile])",
         "return (out, *[tile])",
         "def made():\n        one = nl.zeros((1, 1), nl.float32)\n        return [one, one]\n    return made()",
         "def made():\n        return tuple([nl.zeros((1, 1), nl.float32)])\n    return made()"],
        ["return out[0]", "same = out\n    return same", "return tuple([out])",
         "outs = []\n    outs.append(out)\n    return tuple(outs)",
         "tiles = [tile]\n    return out", "outs = [out]\n    outs += [out]\n    return tuple(outs)"],
    ),
    "output-given": (["return x", "same = x\n    return same[0]"], ["return out"]),
    "removed-argument": (
        ["nisa.dma_copy(dst=out, src=tile, dst_rmw_op=nl.add)", "nisa.memset(dst=tile, value=0.0, mask=scale)",
         "ok = nl.load(x, mask=scale)", "r = nisa.register_alloc(1)\n    nisa.register_move(dst=r, src=r, imm=4)"],
        ["nisa.dma_compute(dst=out, srcs=[tile], reduce_op=nl.add)", "ok = nl.load(x)"],
    ),
    "unknown-argument": (["nisa.tensor_copy(dst=tile, src=tile, dtype=nl.float32)"],
            ["nisa.tensor_copy(dst=tile, src=tile, name='c')"]),
    "missing-argument": (["nisa.reciprocal(data=tile)", "nisa.tensor_tensor(dst=tile, data1=tile, data2=tile)"],
                         ["nisa.reciprocal(dst=tile, data=tile)", "nisa.reciprocal(**scale)"]),
    "new-argument-in-0.4": (["nisa.dma_compute(dst=out, srcs=[tile], reduce_op=nl.add, oob_mode=nisa.oob_mode.skip)"], []),
    "new-argument-in-0.6": (["nisa.tensor_scalar_reduce(dst=tile, data=tile, op0=nl.add, operand0=1.0, reduce_op=nl.add, "
                             "reduce_res=tile, reduce_cmd=nisa.reduce_cmd.reduce)"], []),
    "moved-argument": ([f"{AFFINE}, 0.0)"], [f"{AFFINE}, nl.equal)"]),
    "range-fill": ([f"{SELECT}on_false_value=-1e30)"], [f"{SELECT}on_false_value=-3.4028235e38)", f"{SELECT}reduce_res=tile)"]),
    "hwdge-cast": (["nisa.dma_copy(dst=tile, src=ints, dge_mode=nisa.dge_mode.hwdge)"],
                   ["nisa.dma_copy(dst=tile, src=ints, dge_mode=nisa.dge_mode.swdge)",
                    "nisa.dma_copy(dst=tile, src=ints.view(nl.float32), dge_mode=nisa.dge_mode.hwdge)"]),
    "transpose-rank": (["cube = nl.ndarray((8, 1, TILE), nl.float32, nl.sbuf)\n    nisa.dma_transpose(dst=cube, src=tile)"],
                       ["flat = nl.ndarray((8, TILE), nl.float32, nl.sbuf)\n    nisa.dma_transpose(dst=flat, src=tile)"]),
    "rsqrt-psum": (["ok = nl.rsqrt(bank)"], ["ok = nl.rsqrt(tile)"]),
    "psum-address": (["ok = nl.ndarray((1, 8), nl.float32, nl.psum, address=(0, 100))"],
                     ["ok = nl.ndarray((1, 8), nl.float32, nl.psum, address=(0, 4096))",
                      "ok = nl.ndarray((1, 8), nl.float32, nl.sbuf, address=(0, 100))"]),
    "register-while": (["r = nisa.register_alloc(1)\n    while r:\n        part(tile)"],
                       ["i = 0\n    while i < 2:\n        i += 1"]),
    "loop-in-no-reorder": (["with nl.no_reorder():\n        nl.fori_loop(0, 2, part)"],
                           ["with nl.no_reorder():\n        for i in nl.static_range(2):\n            part(tile)"]),
    "loop-body": (["def body(i):\n        return i\n    nl.fori_loop(0, 2, body)"],
                  ["def body(r):\n        return r\n    nl.while_loop(scale, body)",
                  "def body(i):\n        part(tile)\n    nl.fori_loop(0, 2, body)"]),
    "loop-index": (["def body(i):\n        part(tile[i + 1])\n    nl.fori_loop(0, 2, body)"],
                   ["def body(i):\n        part(tile.ap(pattern=[[8, 1], [1, 8]], scalar_offset=i))"
                    "\n    nl.fori_loop(0, 2, body)"]),
    "dynamic-index": (["for i in nl.dynamic_range(4):\n        if i == 0:\n            part(tile)"],
                      ["for i in nl.dynamic_range(4):\n        part(tile[i])"]),
    "new-in-0.4": (["ok = nl.tile_size.psum_bank_fmax"], ["ok = nl.tile_size.pmax"]),
    "new-in-0.5": (["ok = nl.float8_e8m0fnu"], []),
    "new-in-0.6": (["nl.fori_loop(0, 2, part)"], []),
    "new-in-0.7": (["ok = nl.NkiScalar"], []),
    "gone-in-0.3": (["ok = nl.arange(4)"], []),
    "gone-in-0.4": (["nisa.tensor_copy_dynamic_src(dst=tile, src=tile)"], []),
    "gone-in-0.7": (["for i in nl.dynamic_range(4):\n        pass"], ["for i in nl.affine_range(4):\n        pass"]),
    "deprecated": (["ok = nl.tile_size.psum_fmax"], ["ok = nl.tile_size.gemm_moving_fmax"]),
}  # fmt: skip

OWN = """
    local = [1]
    local.append(2)
"""

CHANGED = [
    ("ok = settings.N", "settings.N = 5"),
    ("ok = settings.N", "settings.N += 1"),
    ("ok = settings.N", "setattr(settings, 'N', 5)"),
    ("ok = settings.SIZES['n']", "settings.SIZES['n'] = 5"),
    ("ok = settings.SIZES[0]", "settings.SIZES.append(5)"),
]
"""A read of what another module holds, and a change of it beside the kernel."""

FROM_ANOTHER = [
    "import settings\n" + CLEAN.replace("# BODY", read) + f"\n\ndef bump():\n    {change}\n" for read, change in CHANGED
]

SOURCES = {
    # the same for what stands outside of the body
    "keyword-only": ([CLEAN.replace("scale=1.0, shape", "*, scale=1.0, shape"), 
                      CLEAN.replace("def part(tile)", "def part(tile, *, n=1)")], []),
    "positional-only": ([CLEAN.replace("x, scale=1.0", "x, /, scale=1.0")], []),
    "variadic": ([CLEAN.replace("shape=(1, 2)", "**shape"), CLEAN.replace("shape=(1, 2)", "*shape")], []),
    "list-argument": (
        [CLEAN.replace("(1, 2)", "[1, 2]"), CLEAN.replace("shape=(1, 2)", "shape: list = (1, 2)"),
         CLEAN + "\n\ndef host(x):\n    return kernel[2](x, 1.0, [1, 2])\n",
         CLEAN + "\n\ndef host(x, sizes):\n    sizes = list(sizes)\n    return kernel(x, shape=sizes)\n"],
        [CLEAN + "\n\ndef host(x, sizes):\n    sizes = tuple(sizes)\n    return kernel[2](x, shape=sizes)\n"],
    ),
    "inheritance": (
        [CLEAN.replace("Config(nl.NKIObject)", "Config(Base)").replace("# BODY", "ok = Config()"),
         CLEAN.replace("Config(nl.NKIObject)", "Config").replace("# BODY", "ok = Config()"),
         CLEAN.replace("class Config(nl.NKIObject)", "@dataclass\nclass Config").replace("# BODY", "ok = Config()"),
         CLEAN.replace("Config(nl.NKIObject)", "Config").replace("# BODY", "ok = Config.n"),
         CLEAN.replace("Config(nl.NKIObject)", "Config(nl.NKIObject, Mixin)").replace("# BODY", "ok = Config()")],
        [CLEAN.replace("# BODY", "ok = Config()"), CLEAN + "\n\nclass TestKernel:\n    pass\n",
         CLEAN.replace("class Config", "@dataclass\nclass Config").replace("# BODY", "ok = Config()"),
         CLEAN + "\n\nclass Plain:\n    pass\n\n\ndef host():\n    return Plain()\n",
         *[CLEAN.replace("# BODY", body) + "\n\nclass scale:\n    pass\n\n\nclass Plain(Exception):\n    pass\n" for body in
           ("ok = scale + 1.0", "Plain = 3\n    ok = Plain + 1", "ok: Plain = 3", "if scale > 9:\n        raise Plain('x')")]],
    ),
    "other-base": (
        [CLEAN.replace("Config(nl.NKIObject)", f"Config({base})").replace("# BODY", "ok = Config.n")
         for base in ("NamedTuple", "typing.NamedTuple", "IntEnum", "str, enum.Enum")],
        [CLEAN.replace("# BODY", "ok = Config()"), CLEAN.replace("# BODY", "ok = Kind.full == scale"),
         CLEAN + "\n\nclass Row(NamedTuple):\n    n: int = 1\n\n\ndef host():\n    return Row()\n"],
    ),
    "kernel-in-kernel": ([CLEAN.replace("def part", "@nki.jit(mode='trace')\ndef part").replace("# BODY", "part(tile)")],
                         [CLEAN.replace("# BODY", "part(tile)"), CLEAN + "\n\ndef host(x):\n    return kernel(x)\n"]),
    "changing-global": (
        [CLEAN.replace("TILE = 128", "TILE = 128\nTILE = 64"), CLEAN.replace("# BODY", "global TILE"),
         CLEAN.replace("# BODY", "ok = NAMES[0]") + "\n\ndef more():\n    NAMES.append('c')\n",
         CLEAN.replace("# BODY", "ok = NAMES[0]") + "\nNAMES[0] = 'c'\n",
         *FROM_ANOTHER,
         "from settings import sizes\n" + CLEAN.replace("# BODY", "ok = sizes.n") + "\nsizes.n = 5\n"],
        [CLEAN.replace("# BODY", "ok = NAMES[0]"), CLEAN.replace("# BODY", "ok = NAMES[0]" + OWN),
         "import settings\n" + CLEAN.replace("# BODY", "ok = settings.M") + "\n\ndef bump():\n    settings.N = 5\n"],
    ),
    "old-namespace": (["import neuronxcc.nki.language\n" + CLEAN, "from torch_neuronx import nki_jit\n" + CLEAN],
                      ["from torch_neuronx import xla_impl\n" + CLEAN]),
    "compile-config": ([CLEAN.replace("@nki.jit", "@nki.jit(compile_config=CONFIG)")],
                       [CLEAN.replace("@nki.jit", "@nki.jit()")]),
    "jit-platform": ([CLEAN.replace("@nki.jit", "@nki.jit(platform_target='trn2')")], []),
    "jit-arguments": ([CLEAN.replace("@nki.jit", "@nki.jit(mode='trace')")], []),
}  # fmt: skip

IMPORTED = [
    ("isa.memset(tile, 0.0)", "import nki.isa as isa", "positional"),
    ("memset(tile, 0.0)", "from nki.isa import memset", "positional"),
    ("wipe(tile, 0.0)", "from nki.isa import memset as wipe", "positional"),
    ("isa.memset(tile, 0.0)", "from nki import isa", "positional"),
    ("nki.isa.memset(tile, 0.0)", "import nki.isa", "positional"),
    ("WIPE(tile, 0.0)", "WIPE = nisa.memset", "positional"),
    ("ok = L.arange(4)", "import nki.language as L", "gone-in-0.3"),
    ("ok = arange(4)", "from nki.language import arange", "gone-in-0.3"),
]

BAD = [(rule, CLEAN.replace("# BODY", body)) for rule, (bad, _) in BODIES.items() for body in bad]
BAD += [(rule, source) for rule, (bad, _) in SOURCES.items() for source in bad]
BAD += [(rule, CLEAN.replace("# BODY", body) + f"\n{line}\n") for body, line, rule in IMPORTED]
GOOD = [(rule, CLEAN.replace("# BODY", body)) for rule, (_, good) in BODIES.items() for body in good]
GOOD += [(rule, source) for rule, (_, good) in SOURCES.items() for source in good]


def _rules(source):
    return {finding.rule for finding in lint_source(source)}


def test_a_clean_kernel_has_no_finding():
    assert lint_source(CLEAN) == []


def test_each_rule_has_a_case():
    """Others are in test_kernel_lint_planted, _values and _followed, `syntax` in test_kernel_lint."""
    planted = {rule for rule, *_ in (*PLANTED_FORMS, *PLANTED_OPERANDS, *PLANTED_VALUES, *FOLLOWED)}
    assert set(BODIES) | set(SOURCES) | planted | {"syntax", "type-alias", "transpose-engine"} == set(RULES)


@pytest.mark.parametrize(("rule", "source"), BAD)
def test_each_offence_is_found_by_its_rule(rule, source):
    assert source != CLEAN
    findings = [finding for finding in lint_source(source) if finding.rule == rule]
    assert findings
    assert all(finding.line > 0 and finding.message for finding in findings)


@pytest.mark.parametrize(("rule", "source"), GOOD)
def test_the_documented_form_is_not_found(rule, source):
    assert rule not in _rules(source)


@pytest.mark.parametrize("rule", [name for name, (bad, _) in BODIES.items() if bad])
def test_the_first_offence_of_a_rule_breaks_no_other(rule):
    body = BODIES[rule][0][0]
    also = {
        "dynamic-index": {"gone-in-0.7"},
        "loop-in-no-reorder": {"new-in-0.6"},
        "loop-body": {"new-in-0.6", "inner-function"},
        "loop-index": {"new-in-0.6", "inner-function"},
        "moved-argument": {"positional"},
        "raw-enum": {"engine-choice"},
        "range-fill": {"operand-dtype", "operand-size"},
        "changing-global": {"outer-name"},
        "new-argument-in-0.6": {"operand-size"},
    }
    assert _rules(CLEAN.replace("# BODY", body)) - {rule} <= also.get(rule, set())


def test_versions_of_a_rule_are_known_and_in_order():
    for rule in RULES.values():
        assert rule.versions
        assert [version for version in VERSIONS if version in rule.versions] == list(rule.versions)
    assert RULES["register-while"].versions == ("0.7",)
    assert RULES["old-namespace"].versions == ("0.4", "0.5", "0.6", "0.6-tracer", "0.7")
    assert RULES["compile-config"].versions == ("0.3", "0.4", "0.5", "0.6", "0.6-tracer")
    assert RULES["tuple-loop"].versions == ("0.3", "0.4", "0.5", "0.6")


def test_plain_python_beside_a_kernel_is_not_kernel_code():
    reference = "\n\ndef reference(x):\n    with open('f') as f:\n        return {1: x is None, 2: [i for i in f if i]}\n"
    assert lint_source(CLEAN + reference) == []
    called = (CLEAN + reference).replace("# BODY", "ok = reference(x)")
    assert {"identity-of-none", "dict-key", "comprehension", "with", "builtin"} <= _rules(called)
