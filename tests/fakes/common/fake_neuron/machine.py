"""The one fake machine of a process: its LNC, its memory, its faults to order, and the log of compilations."""

import os
from dataclasses import dataclass, field

from fake_neuron.kept import in_neff_cache
from fake_neuron.rules import refuse

__all__ = ["MACHINE", "CompileRecord", "Machine"]

HBM_BANK_BYTES = 24 * 2**30
NKI_VERSION = os.environ.get("FAKE_NKI_VERSION", "0.7.0+standin")
WATCHED = (
    "NEURON_LOGICAL_NC_CONFIG",
    "NEURON_PLATFORM_TARGET_OVERRIDE",
    "NEURON_RT_NUM_CORES",
    "NKI_ENABLE_TRACE_CACHE",
    "TORCH_NEURONX_NEFF_CACHE_DIR",
    "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION",
)
"""Variables that are read when the packages are imported or the runtime starts."""


@dataclass(frozen=True)
class CompileRecord:
    """One compilation: `what` is a kernel's name, `graph` or `trace`; `where` is eager, graph, trace or neff."""

    what: str
    where: str
    key: tuple


@dataclass
class Machine:
    """State that the fake packages share; `reset` between tests."""

    compiles: list = field(default_factory=list)
    loaded: list = field(default_factory=list)
    frozen: list = field(default_factory=list)
    launches: list = field(default_factory=list)
    ops: list = field(default_factory=list)
    programs: dict = field(default_factory=dict)
    shapes: dict = field(default_factory=dict)
    lnc_of_kernel: dict = field(default_factory=dict)
    broken_kernels: dict = field(default_factory=lambda: _ordered_faults())
    latches: bool = field(default_factory=lambda: os.environ.get("FAKE_NEURON_LATCHES") == "1")
    latched: str | None = None
    hbm_bytes: int = HBM_BANK_BYTES
    synchronized: int = 0
    takes_int64: bool = False
    nki_version: str = NKI_VERSION
    where: str = "eager"
    inside_op: bool = False
    chip: str = field(default_factory=lambda: os.environ.get("FAKE_NEURON_CHIP", "trn2"))
    in_graph: list = field(default_factory=list)
    at_import: dict = field(default_factory=lambda: {name: os.environ.get(name) for name in WATCHED})

    def reset(self) -> None:
        """Forget everything but the environment seen at import."""
        self.compiles.clear()
        self.loaded.clear()
        self.frozen.clear()
        self.launches.clear()
        self.ops.clear()
        self.in_graph.clear()
        self.inside_op = False
        self.programs.clear()
        self.shapes.clear()
        self.lnc_of_kernel.clear()
        self.broken_kernels.clear()
        self.latches, self.latched = False, None
        self.hbm_bytes = HBM_BANK_BYTES
        self.where = "eager"
        self.synchronized = 0
        self.takes_int64 = False
        self.nki_version = NKI_VERSION

    @property
    def lnc(self) -> int:
        """LNC of the runtime and the compiler, as seen at import."""
        return int(self.at_import["NEURON_LOGICAL_NC_CONFIG"] or (1 if self.chip == "trn1" else 2))

    @property
    def world(self) -> str:
        """`native` or `xla`, from the packages that are on the path."""
        return os.environ.get("FAKE_NEURON_WORLD", "native")

    def check_environment(self) -> None:
        """Variables that are read at import must not have changed since."""
        for name, value in self.at_import.items():
            if os.environ.get(name) != value:
                refuse("environment-early", f"{name} was {value!r} at import and is {os.environ.get(name)!r} now")
        if os.environ.get("NKI_SIMULATOR") == "1":
            refuse("simulator-off", "a kernel was launched for a device")

    def compiled(self, what: str, key: tuple, where: str | None = None) -> None:
        """Log one compilation, or that a cache on disk held it. A traced model holds its kernels: it compiles nothing."""
        if self.where == "neff":
            return
        record = CompileRecord(what, where or self.where, key)
        (self.loaded if in_neff_cache(record) else self.compiles).append(record)

    def kernel_in_graph(self, key: tuple) -> None:
        """Note a kernel of the graph being compiled; Trn1 takes one."""
        if self.where not in ("graph", "trace"):
            return
        self.in_graph.append(key)
        if self.chip == "trn1" and len(self.in_graph) > 1:
            refuse("kernels-per-graph", f"{len(self.in_graph)} kernels in one graph on trn1")

    def raise_latched(self) -> None:
        """A failure that its own launch did not report comes out at the next op on the device."""
        if self.latched is not None:
            problem, self.latched = self.latched, None
            raise RuntimeError(problem)

    def count(self, what: str) -> int:
        """Number of compilations of a kernel by its name, of any kernel (`kernel`), `graph` or `trace`."""
        if what == "kernel":
            return sum(record.what not in ("graph", "trace") for record in self.compiles)
        return sum(record.what == what for record in self.compiles)

    def broken(self, kernel: str) -> str | None:
        """What stops the compiler at a kernel: what was ordered for it, or for any (`kernel`); None if nothing was."""
        return self.broken_kernels.get(kernel, self.broken_kernels.get("kernel"))


def _ordered_faults() -> dict:
    """FAKE_NEURON_BROKEN=name=message: the kernel of that name (`kernel`: any) does not compile."""
    name, _, message = os.environ.get("FAKE_NEURON_BROKEN", "").partition("=")
    return {name: message} if name else {}


MACHINE = Machine()
