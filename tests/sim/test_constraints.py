"""Every rule has a call that breaks it: refused by that rule alone, and not refused for it when the rule is taken out."""

from pathlib import Path

import pytest
from constraint_cases import BASE, BROKEN, column, gathered, scattered, tile

from nki_hf.chips import get_chip
from nki_hf.errors import KernelFault
from nki_hf.sim import SimOptions, launch
from nki_hf.sim import isa as nisa
from nki_hf.sim import language as nl
from nki_hf.sim.constraints import RULES, rule
from nki_hf.sim.constraints.instructions import INSTRUCTIONS
from nki_hf.sim.constraints.table import markdown
from nki_hf.sim.faults import SimulatorWarning
from nki_hf.sim.tensors.tensor import NkiTensor

CORES = ("core_barrier", "sendrecv")
ALL = [(opcode, item) for opcode, rules in RULES.items() for item in rules]
HAND = {key[:2]: key for key in BROKEN}


def call(opcode, changes, *, chip, lnc=None, third_party=False):
    """One call of `BASE[opcode]` with the changed arguments, in a launch on shapes alone."""

    def kernel():
        arguments = {**BASE[opcode](), **changes()}
        getattr(nisa, opcode)(**arguments)

    options = SimOptions(chip=get_chip(chip), values=False, third_party=third_party)
    launch(kernel, (), options=options, lnc=lnc or (2 if opcode in CORES else 1))


def home(opcode):
    """The chip on which the base call is valid."""
    table = INSTRUCTIONS.get(opcode)
    return "trn3" if table is not None and table.since == 4 else "trn2"


def tiles_of(opcode):
    found = {}

    def kernel():
        found.update({name: value for name, value in BASE[opcode]().items() if isinstance(value, NkiTensor)})

    launch(kernel, (), options=SimOptions(chip=get_chip(home(opcode)), values=False), lnc=2 if opcode in CORES else 1)
    return found


def half_word(opcode, name):
    """An output in PSUM of 8-bit elements that starts at byte 2 of its partition, or ends there in half a word."""
    arguments = BASE[opcode]()
    which = "dst" if "dst" in arguments else "val_dst"
    shape = arguments[which].shape
    wide = tile((shape[0], 16 + 2 * shape[1]), "uint8", "psum")
    start, stop = (2, 2 + shape[1]) if name == "psum_word_start" else (0, shape[1] + (2 - shape[1] % 4))
    return {which: wide[:, start:stop]}


def generic(opcode, item):
    """`(changes, chip)` that break a rule made from the table."""
    table, chip, name = INSTRUCTIONS[opcode], home(opcode), item.name
    tiles = tiles_of(opcode)
    first, last = next(iter(tiles)), list(tiles)[-1]

    def like(which, **changes):
        known = tiles[which]
        arguments = {"shape": known.shape, "dtype": known.dtype.name, "space": known.space, **changes}
        return lambda: {which: tile(**arguments)}

    if name == "generation":
        return dict, {3: "trn1", 4: "trn2"}[table.since]
    if name == "engine":
        wrong = next(e for e in nisa.engine if e.name not in (*table.engines, "unknown"))
        return lambda: {"engine": wrong}, chip
    if name == "gpsimd_psum":
        change = like(first, space="psum")
        return lambda: {"engine": nisa.engine.gpsimd, **change()}, chip
    if name in ("in_sbuf", "in_psum"):
        which = (table.sbuf if name == "in_sbuf" else table.psum)[-1]
        return like(which, space="psum" if name == "in_sbuf" else "sbuf"), chip
    if name == "equal_partitions":
        which = table.equal[-1]
        return like(which, shape=(tiles[which].shape[0] // 2, *tiles[which].shape[1:])), chip
    if name == "equal_elements":
        which = table.equal[-1]
        return like(which, shape=(*tiles[which].shape[:-1], tiles[which].shape[-1] + 1)), chip
    if name == "columns":
        which = next(c for c in table.columns if c in tiles)
        return like(which, shape=(tiles[which].shape[0], 2)), chip
    if name == "one_in_psum":
        changes = [like(which, space="psum") for which in table.one_in_psum]
        return lambda: {**changes[0](), **changes[1]()}, chip
    if name == "same_dtype":
        return like(table.same_dtype[-1], dtype="uint16"), chip
    if name.endswith("_dtype"):
        which, allowed = name.removesuffix("_dtype"), dict(table.dtypes)[name.removesuffix("_dtype")]
        return like(which, dtype=next(d for d in ("int32", "float32", "bfloat16", "bool") if d not in allowed)), chip
    if name == "fp32":
        return like(next(c for c in table.fp32 if c in tiles), dtype="bfloat16"), chip
    if name == "indirect":
        which = next(c for c in reversed(tiles) if c not in table.indirect)
        return lambda: {which: scattered(dtype=tiles[which].dtype.name)}, "trn3"
    if name in ("index_quadrant", "index_partition"):
        which = next((n for n in tiles if n not in ("dst", "val_dst", "idx_dst")), first)
        addresses = ((0, 0), (16, 64)) if name == "index_quadrant" else ((32, 0), (64, 64))
        dtype = tiles[which].dtype.name
        return lambda: {which: scattered((32, 16), dtype, "sbuf", *addresses)}, "trn3"
    return access(item.name, first, last, tiles), chip


def access(name, first, last, tiles):
    """Changes that break a rule about on-chip accesses in general."""
    dtype = tiles[first].dtype.name
    views = {
        "on_chip": lambda: tile((32, 16), dtype, "hbm"),
        "partitions": lambda: tile((129, 16), dtype),
        "not_empty": lambda: tile((32, 16), dtype)[:, 4:4],
        "adjacent_partitions": lambda: tile((64, 16), dtype)[0:64:2],
        "start_partition": lambda: tile((64, 16), dtype)[16:48],
        "pattern_axes": lambda: tile((32, 4, 4, 4, 4, 4), dtype)[:, 0:4:2, 0:4:2, 0:4:2, 0:4:2, 0:4:2],
        "pattern_range": lambda: tile((32, 2, 40_000), "int8")[:, :, 0:2],
        "access_elements": lambda: tile((32, 2, 40_000), dtype),
    }
    return lambda: {first: views[name]()}


def broken(opcode, item):
    """`(changes, chip, lnc)` of the call that breaks the rule."""
    key = HAND.get((opcode, item.name))
    if key is not None:
        return BROKEN[key], key[2] if len(key) > 2 else home(opcode), key[3] if len(key) > 3 else None
    if item.name in ("psum_word_start", "psum_whole_words"):
        return lambda: half_word(opcode, item.name), home(opcode), None
    if opcode in INSTRUCTIONS:
        return *generic(opcode, item), None
    if item.name == "gathered_in_hbm" or item.name == "indices_in_sbuf":
        return DMA_INDEX[item.name][opcode], home(opcode), None
    raise KeyError(f"no call breaks {opcode}.{item.name}")


def _misplaced(space):
    """A gather whose index (`index`) or table (`table`) is in the wrong memory, which no view operation would build."""

    def make(shape=(32, 16), dtype="float32"):
        view = gathered(shape, dtype)
        wrong = tile((32, 1), "uint32", "hbm") if space == "index" else None
        moved = view.indirection
        if wrong is not None:
            object.__setattr__(moved, "index", wrong)
            return view
        return tile((256, *shape[1:]), dtype)[0:32]._view(shape, view.strides, 0, indirection=moved)

    return make


_FAR_INDEX, _NEAR_TABLE = _misplaced("index"), _misplaced("table")
DMA_INDEX = {
    name: {
        "dma_copy": lambda make=make: {"src": make()},
        "dma_transpose": lambda make=make: {"src": make((32, 16), "bfloat16")},
        "dma_compute": lambda make=make: {"srcs": [make(), tile((32, 16))]},
    }
    for name, make in (("indices_in_sbuf", _FAR_INDEX), ("gathered_in_hbm", _NEAR_TABLE))
}


@pytest.fixture
def only(monkeypatch):
    """Function that leaves a part of the rules of one instruction in force."""
    from importlib import import_module

    module = import_module("nki_hf.sim.constraints.rule")

    def keep(opcode, wanted):
        monkeypatch.setattr(module, "_passed", set())
        monkeypatch.setitem(RULES, opcode, [item for item in RULES[opcode] if wanted(item)])

    return keep


MX_SCALE = pytest.mark.filterwarnings("ignore:quantize_mx")  # it always depends on a choice


@MX_SCALE
@pytest.mark.parametrize("opcode", list(RULES))
def test_a_valid_call_breaks_no_rule(opcode):
    call(opcode, dict, chip=home(opcode))


@pytest.mark.parametrize(
    ("opcode", "argument", "value"),
    [
        ("tensor_tensor", "engine", 5),
        ("tensor_tensor", "engine", "vector"),
        ("tensor_tensor", "engine", nisa.dge_mode.none),
        ("dma_copy", "dge_mode", 3),
        ("dma_copy", "oob_mode", 1),
        ("nc_matmul", "perf_mode", "double"),
        ("tensor_scalar_reduce", "reduce_cmd", 2),
        ("sendrecv", "dma_engine", 1),
    ],
)
def test_enumerations_are_passed_by_name(opcode, argument, value):
    with pytest.raises(KernelFault, match=rf"{argument}=.*must be a member of nisa\.\w+") as caught:
        call(opcode, lambda: {argument: value}, chip=home(opcode))
    assert (caught.value.record.kind, caught.value.record.instruction) == ("argument", opcode)


def test_a_transfers_mode_by_value_only_warns_in_kernels_written_elsewhere():
    with pytest.warns(SimulatorWarning, match=r"dge_mode=3, must be a member of nisa\.dge_mode"):
        call("dma_copy", lambda: {"dge_mode": 3}, chip="trn2", third_party=True)
    with pytest.raises(KernelFault, match="dge_mode=4"):
        call("dma_copy", lambda: {"dge_mode": 4}, chip="trn2", third_party=True)
    with pytest.raises(KernelFault, match="dge_mode=3"):  # what only warned there is not remembered as right
        call("dma_copy", lambda: {"dge_mode": 3}, chip="trn2")


REFUSING = [(opcode, item) for opcode, item in ALL if not item.choice]


@MX_SCALE
@pytest.mark.parametrize(("opcode", "item"), REFUSING, ids=[f"{opcode}-{item.name}" for opcode, item in REFUSING])
def test_each_rule_refuses_a_call_that_nothing_else_would(opcode, item, only):
    changes, chip, lnc = broken(opcode, item)
    with pytest.raises(KernelFault):  # with every rule in force
        call(opcode, changes, chip=chip, lnc=lnc)
    only(opcode, lambda other: other is item)
    with pytest.raises(KernelFault) as caught:
        call(opcode, changes, chip=chip, lnc=lnc)
    record = caught.value.record
    assert (record.kind, record.instruction, record.limit) == (item.kind, opcode, item.limit)
    assert record.details == {"rule": item.name}
    assert record.file == __file__
    only(opcode, lambda other: False)
    try:
        call(opcode, changes, chip=chip, lnc=lnc)
    except KernelFault as other:
        assert other.record.details != {"rule": item.name}  # noqa: PT017  (refused elsewhere: by another layer)


CHOICES = {
    ("activation", "copy_with_bias"): (lambda: {"op": nl.copy, "bias": 1.0}, "trn1", "trn2"),
    ("activation_reduce", "copy_with_bias"): (lambda: {"op": nl.copy, "bias": column()}, "trn1", "trn2"),
    ("quantize_mx", "mx_scale"): (dict, "trn3", None),
}


@pytest.mark.parametrize("third_party", [False, True])
@pytest.mark.parametrize(("opcode", "name"), [(opcode, item.name) for opcode, item in ALL if item.choice])
def test_a_call_whose_meaning_is_open_warns_every_kernel_and_is_executed(opcode, name, third_party, only):
    changes, chip, other = CHOICES[opcode, name]
    only(opcode, lambda item: item.name == name)
    for _ in range(2):  # the second call is not remembered as one without a warning
        with pytest.warns(SimulatorWarning, match=rf"^{opcode}: .*{__file__}"):
            call(opcode, changes, chip=chip, third_party=third_party)
    if other is not None:
        call(opcode, changes, chip=other, third_party=third_party)


def test_copy_without_a_bias_depends_on_no_choice():
    call("activation", lambda: {"op": nl.copy, "bias": None}, chip="trn1")
    call("activation", lambda: {"op": nl.relu, "bias": column()}, chip="trn1")


def test_every_instruction_has_rules_and_every_rule_names_its_source():
    public = {name for name in nisa.__all__ if hasattr(getattr(nisa, name), "__code__")}
    unruled = {
        "get_nc_version",
        "get_nc_sub_version",
        "register_alloc",
        "register_load",
        "register_move",
        "register_store",
        "scalar_load",
        "scalar_store",
    }  # registers are checked where they are defined: they are no operands of an engine's datapath
    assert public - set(RULES) == unruled
    assert all(item.source and item.limit and item.kind for _, item in ALL)
    for rules in RULES.values():
        assert len({item.name for item in rules}) == len(rules)


def test_an_unsure_rule_warns_kernels_written_elsewhere_and_refuses_ours():
    def changes():
        return {"src": tile((64, 16))[16:48]}

    with pytest.raises(KernelFault, match="starts at partition 16"):
        call("tensor_copy", changes, chip="trn2")
    with pytest.warns(SimulatorWarning, match="starts at partition 16"):
        call("tensor_copy", changes, chip="trn2", third_party=True)


def test_a_sure_rule_refuses_kernels_written_elsewhere_too():
    with pytest.raises(KernelFault, match="at most 128"):
        call("nc_matmul", lambda: {"stationary": tile((32, 129), "bfloat16")}, chip="trn2", third_party=True)


def test_a_remembered_call_is_not_checked_again_and_a_changed_one_is(monkeypatch):
    from importlib import import_module

    module, seen = import_module("nki_hf.sim.constraints.rule"), []
    monkeypatch.setattr(module, "_passed", set())
    monkeypatch.setitem(RULES, "reciprocal", [])
    rule("reciprocal", "argument", "counts", "test")(lambda o: seen.append(o.data.shape))
    for width in (16, 16, 24, 16):
        call("reciprocal", lambda width=width: {n: tile((32, width)) for n in ("dst", "data")}, chip="trn2")
    assert seen == [(32, 16), (32, 24)]
    call("reciprocal", dict, chip="trn1")
    assert seen == [(32, 16), (32, 24), (32, 16)]


@pytest.mark.parametrize(
    ("opcode", "changes"),
    [
        ("tensor_reduce", lambda: {"data": tile((32, 4, 4)), "axis": 1}),
        ("tensor_reduce", lambda: {"axis": 0}),
        ("dma_transpose", lambda: {"axes": (0, 1)}),
        ("dma_transpose", lambda: {"src": tile((2, 2, 2, 2, 2), "bfloat16", "hbm")}),
        ("nc_stream_shuffle", lambda: {"shuffle_mask": [0] * 31}),
    ],
)
def test_limits_that_the_instruction_needs_for_its_own_definition_are_faults_too(opcode, changes):
    with pytest.raises(KernelFault) as caught:
        call(opcode, changes, chip="trn2")
    assert (caught.value.record.instruction, caught.value.record.file) == (opcode, __file__)


@pytest.mark.parametrize("accumulate", [None, False, True])
@pytest.mark.parametrize("written", [False, True])
def test_accumulating_needs_a_product_that_was_written(accumulate, written):
    def kernel():
        psum, a, b = tile((16, 24), space="psum"), tile((32, 16), "bfloat16"), tile((32, 24), "bfloat16")
        if written:
            nisa.nc_matmul(dst=psum, stationary=a, moving=b)
        nisa.nc_matmul(dst=psum, stationary=a, moving=b, accumulate=accumulate)

    if accumulate is True and not written:
        with pytest.raises(KernelFault, match="never written") as caught:
            launch(kernel, (), options=SimOptions(values=False))
        assert caught.value.record.kind == "uninitialized"
    else:
        launch(kernel, (), options=SimOptions(values=False))


@pytest.mark.parametrize(("rows", "start"), [(r, s) for r in (32, 33, 64, 65, 128) for s in (0, 32, 64, 96) if r + s <= 128])
def test_the_first_partition_depends_on_how_many_there_are(rows, start):
    allowed = {0} if rows > 64 else {0, 64} if rows > 32 else {0, 32, 64, 96}

    def changes():
        return {"dst": tile((128, 16))[start : start + rows], "src": tile((rows, 16))}

    if start in allowed:
        call("tensor_copy", changes, chip="trn2")
    else:
        with pytest.raises(KernelFault, match=f"starts at partition {start}"):
            call("tensor_copy", changes, chip="trn2")


def test_moving_may_be_wider_from_the_fourth_generation_on():
    def changes():
        return {"moving": tile((32, 1024), "bfloat16"), "dst": tile((16, 1024), space="psum")}

    call("nc_matmul", changes, chip="trn3")
    with pytest.raises(KernelFault, match="1,024 free elements"):
        call("nc_matmul", changes, chip="trn2")


def test_no_check_runs_when_checks_are_off():
    def kernel():
        nisa.tensor_copy(dst=tile((129, 16)), src=tile((129, 16)))

    launch(kernel, (), options=SimOptions(values=False, checks=False))
    with pytest.raises(KernelFault):
        launch(kernel, (), options=SimOptions(values=False))


def test_the_documented_table_is_current():
    document = Path(__file__).parents[2] / "docs" / "constraints.md"
    assert document.read_text() == markdown(), "run: python -m nki_hf.sim.constraints.table > docs/constraints.md"


def _matmul_transpose(dtype):
    return {
        "stationary": tile((32, 16), dtype),
        "moving": tile((32, 32), dtype),
        "dst": tile((16, 32), "float32", "psum"),
        "is_transpose": True,
    }


def test_a_transposing_product_of_16_bit_data_writes_16_bit_from_neuroncore_v3_on():
    """As nki-library chooses the type of PSUM in core/moe/moe_cte/bwmm_shard_on_I.py."""
    call("nc_matmul", lambda: _matmul_transpose("bfloat16"), chip="trn1", third_party=True)
    with pytest.raises(KernelFault, match="with is_transpose=True, dst must be as wide as stationary"):
        call("nc_matmul", lambda: _matmul_transpose("bfloat16"), chip="trn2", third_party=True)
    call("nc_matmul", lambda: _matmul_transpose("float32"), chip="trn2", third_party=True)


@pytest.mark.parametrize("chip", ["trn1", "trn2"])
def test_16_bit_data_through_float32_psum_is_a_warning_as_public_kernels_do_so(chip):
    """sols/trn-advanced-nki2/6_csa_2048_ref.py of autocomp; other types are what the documentation forbids."""
    with pytest.warns(SimulatorWarning, match="for 16-bit floats into float32 PSUM too"):
        call("nc_transpose", lambda: {"data": tile((32, 16), "float16")}, chip=chip, third_party=True)
    for changes in (
        lambda: {"dst": tile((16, 32), "bfloat16", "psum")},
        lambda: {"data": tile((32, 16), "bfloat16"), "dst": tile((16, 32)), "engine": nisa.engine.vector},
        lambda: {"data": tile((32, 16), "int32")},
    ):
        with pytest.raises(KernelFault, match="dst must have the dtype of data"):
            call("nc_transpose", changes, chip=chip, third_party=True)
