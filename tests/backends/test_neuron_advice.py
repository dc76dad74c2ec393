"""The advice of a failed launch, from messages of AWS's own: quoted in its documents, or by others in public threads."""

from types import SimpleNamespace

import pytest

from nki_hf.backends.base import KernelCall
from nki_hf.backends.neuron_advice import lines_of
from nki_hf.backends.neuron_launch import LaunchFailed

ON_CHIP, HOST, BUSY = "a fault of its plan, not of the call", "the host's memory was full", "Another process holds the core"
FULL, LNC, FAULTY = "The device's memory is full", "every source of the logical-core degree", "faulty, not full"
TOO_LONG, UNKNOWN = "refuses so many instructions", "See whether the kernel or the graph fails"

PATH, ISLPY, TRN1 = "are not on PATH", "pip install 'islpy==2026.1'", "one kernel in a graph"

MESSAGES = [
    # field reports of fresh installs of the xla world
    ("[NCC_ISMP902] Simplifier error: is_subset() on an empty set", ISLPY),
    ("[Errno 2] No such file or directory: 'libneuronpjrt-path'", PATH),
    ("[Errno 2] No such file or directory: 'neuronx-cc'", PATH),
    # aws-neuron-sdk #1311
    ("NRT verifier: shared-memory instruction is not valid on trn1", TRN1),
    # aws-neuron-sdk #1060
    (
        "[GCA035]  Instruction: I-21-0 with opcode: TensorTensor couldn't be allocated in SB\nMemory Location Accessed: \n"
        "res.48_i0: 888 Bytes per Partition and total of: 113664 Bytes in SB\nTotal SB Partition Size: 196608",
        ON_CHIP,
    ),
    # aws-neuron-sdk #1036 and #1118
    (
        "Compilation failed\n[NLA001]  Unhandled exception with message: Allocated memory out of bound "
        "{b_tile_sub0}@SB<0,400000>(128x4000)#Internal DebugInfo: <b_tile||UNDEF||[128, 1000, 1]>",
        ON_CHIP,
    ),
    # nki's own, as public benchmark scripts of kernels look for it
    ("error: Out of memory in sbuf", ON_CHIP),
    ("error: Out of memory in psum", ON_CHIP),
    ("PSUM memory exceeded: kernel needs 9 banks", ON_CHIP),
    # neuronx-cc, in the log of each killed compilation
    (
        "[F137] neuronx-cc was forcibly killed - This most commonly occurs due to insufficient system memory. Using a smaller "
        "data type, dimensions, batch size, or a larger instance type may help.",
        HOST,
    ),
    ("[Errno 12] Cannot allocate memory", HOST),
    # neuron-runtime/nrt-troubleshoot
    ("ERROR   NRT:nrt_allocate_neuron_cores               NeuronCore(s) not available - Requested:nc1-nc1 Available:0", BUSY),
    (
        "RuntimeError: The PyTorch Neuron Runtime could not be initialized.\nNRT:nrt_allocate_neuron_cores  Logical Neuron "
        "Core(s) not available - Requested:lnc0-lnc0 Available:0 Logical Core size:2 (cores busy, ret=-16)",
        BUSY,
    ),
    ("nrt_init failed: NRT_FAILURE, cores in use by another process", BUSY),
    (
        "kernel: [XXXXX] neuron:mc_alloc: device mempool [0:0] total 1073741568 occupied 960539030 needed 1272 available 768",
        FULL,
    ),
    ("Uncorrectable memory error is detected on Neuron device: 5:1 metadata: 0x2. Failing execution.", FAULTY),
    # optimum-neuron #668, vllm #12443
    ("NRT:nrt_infodump   Failure: NRT_RESOURCE in nrt_load()", FULL),
    ("ERROR  TDRV:dmem_alloc_internal                     Failed to alloc DEVICE memory: 10485760", FULL),
    ('nrt_tensor_allocate status=4 message="Allocation Failure"', FULL),
    ("Load failed\nFailed to allocate 1.000GB (alignment: 4.000MB, usage: shared scratchpad)", FULL),
    # compiler/error-codes
    ("[NCC_EOOM001] The combined memory needed for the model's activation tensors exceeds the limit", FULL),
    (
        "[NCC_EOOM002] The combined memory needed for the model tensors exceeds the high-bandwidth memory limit.\n"
        "SBUF spills: Data that cannot fit in on-chip SBUF memory and must spill to HBM",
        FULL,
    ),
    ("error\n[NCC_EVRF009]", FULL),
    ("[NCC_EXSP001]", FULL),
    ("[NCC_EARG001] a Logical Neuron Core (LNC) configuration that the target Neuron architecture does not have", LNC),
    ("[NCC_EVRF066] NKI kernel 'k' is configured with LNC=1, but neuronx-cc is using LNC=2.", LNC),
    ("traceback\nthe kernel's LNC does not match the compiler's", LNC),
    ("[NCC_EBVF030] The number of instructions generated exceeds the limit.", TOO_LONG),
    ("2024-03-10T17:23:34Z [LUR015] Compiler generated too many instructions (13890556).", TOO_LONG),
    # What only sounds like one of them
    ("NCC_IBIR: memory location 4 not aligned", UNKNOWN),
    ("RuntimeError: unable to determine logical shape", UNKNOWN),
    ("Failed compilation with ['neuronx-cc', 'compile', '--target=trn2', '--lnc=2', '--logical-nc-config=2']", UNKNOWN),
    ("dma: SBUF and PSUM tiles have different memory layouts", UNKNOWN),
    ("the allocator was not initialised", UNKNOWN),
    ("[F134] neuronx-cc terminated abnormally - Please open a support ticket", UNKNOWN),
]


def _call():
    def tensor(*shape):
        return SimpleNamespace(shape=shape, dtype="torch.bfloat16", device="neuron:0")

    tensors = {"q": tensor(1, 4, 64, 128), "k": tensor(1, 2, 64, 128), "v": tensor(1, 2, 128, 64)}
    return KernelCall(kernel="flash_prefill", tensors=tensors, constants={}, lnc=2)


@pytest.mark.parametrize(("message", "advice"), MESSAGES)
def test_each_message_gets_the_advice_of_its_cause_and_no_other(message, advice):
    text = str(LaunchFailed(_call(), RuntimeError(message)))
    given = [one for one in (ON_CHIP, HOST, BUSY, FULL, LNC, FAULTY, TOO_LONG, UNKNOWN, PATH, ISLPY, TRN1) if one in text]
    assert given == [advice]
    assert ("python examples/device_bisect.py --device neuron --batch 1" in text) == (
        advice in (ON_CHIP, TOO_LONG, UNKNOWN, TRN1)
    )
    assert "\n" not in text


def test_the_line_that_names_the_cause_is_quoted_beside_the_first():
    text = str(LaunchFailed(_call(), RuntimeError("Compilation failed:\n  stack ...\nNRT_RESOURCE: out of device memory.")))
    assert "RuntimeError: Compilation failed: NRT_RESOURCE: out of device memory. The device's memory is full" in text
    assert "stack" not in text


def test_what_an_error_was_raised_from_is_read_too():
    try:
        try:
            raise OSError("[F137] neuronx-cc was forcibly killed")
        except OSError as killed:
            raise RuntimeError("compilation of the graph failed") from killed
    except RuntimeError as error:
        failed = error
    assert lines_of(failed) == ["compilation of the graph failed", "[F137] neuronx-cc was forcibly killed"]
    assert HOST in str(LaunchFailed(_call(), failed))
    assert "TimeoutError: TimeoutError. See whether" in str(LaunchFailed(_call(), TimeoutError()))
