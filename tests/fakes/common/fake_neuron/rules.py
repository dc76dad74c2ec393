"""The documented rules that the fakes enforce, by name, each with where it is documented.

Weights: D = official documentation, K = source of the nki wheel, S = a public snapshot of the native torch_neuronx
source (April 2026), X = a published report from a trn2 instance.
"""

__all__ = ["RULES", "Refused", "refuse"]

RULES = {
    # launching a kernel
    "lnc-bare-int": "K framework/kernel.py, X: kernel[2] takes the bare int 1 or 2; kernel[(2,)] is a validation error",
    "lnc-agrees": "D nki/migration 2.33: nki 0.7 rejects a kernel whose LNC differs from the compiler's (half speed before)",
    "lnc-one-per-process": "S nki_op_impl.py: the eager cache key omits the grid, so one kernel must keep one LNC",
    "tensor-on-device": "K framework/compiled.py: a CPU tensor falls into the torch_xla path, which native lacks",
    "tensor-one-device": "D framework_custom_op: all tensors of a launch live on one device",
    "tensor-top-level": "K framework/kernel.py: tensors inside containers are not seen by the dispatch",
    "tensor-dense": "reported: nki reads storage, not strides; inputs must be contiguous",
    "tensor-offset": "S tests/nki/test_slice_input_mismatch.py: slices are only known to work in one dimension; materialise",
    "tensor-dtype": "D compiler release notes 2.32: 64-bit types are downcast or refused; bool was uint8 before nki 0.4",
    "tensor-plain": "D NxD Inference strips tensor subclasses before a launch: Parameters must be detached",
    "constant-kind": "D nki-language-guide: None, bool, int32, fp32, str, tuples, enums, NKIObjects; no lists since 0.3",
    "all-parameters": "K framework/compiled.py: the in-memory cache key omits argument names and unbound defaults",
    "environment-early": "D environment-variables: LNC and target variables are read at import; later changes have no effect",
    "simulator-off": "D environment-variables: NKI_SIMULATOR=1 runs every kernel in nki's CPU simulator, not on the chip",
    "core-one-process": "D neuron-runtime configuration-guide: a core belongs to one process at a time, until that ends",
    # what a kernel is
    "signature-kinds": "D migration guide nki 0.3.0: no keyword-only marker; *args, **kwargs and `/` are named nowhere",
    "output-shared-hbm": "D release notes nki 0.3.0: outputs are allocated in shared_hbm and returned",
    "front-end": "D nki/migration, nki-language-guide: 0.3 to 0.6 parse a subset of Python, 0.7 traces; names come and go",
    "kernel-pure": "D nki-language-guide: compiled kernels are kept by their arguments; changed globals are not seen",
    "output-fresh": "torch.library: outputs of an op may not alias inputs; aliasing with nki kernels is unverified",
    # custom ops and graphs
    "op-plain-function": "D nki/get-started/about: nki_op decorates a plain function that calls the kernel, not the kernel",
    "op-qualified-name": "S nki_hop.py: the name is namespace::op",
    "op-annotations": "S nki_hop.py: the schema is inferred from real annotations of the torch.library set",
    "op-fresh-outputs": "torch.library: an op may not return an input or a view of one",
    "graph-static": "D reference-torch-compile: dynamic=True and automatic dynamic shapes are refused",
    "graph-mode": "D reference-torch-compile: only mode='default', only documented options",
    "graph-opaque-op": "S nki_hop.py: an op not made by nki_op has no decomposition, so the compiler cannot lower it",
    "op-lowering": "S nki_hop.py: the body of an op is traced into the graph; ops without a known lowering do not compile",
    "dtype-view": "S tests: view.dtype fails for every dtype; torch-mlir compares bit widths, of which a bool has 1",
    "kernels-per-graph": "reported (public issue, open): trn1's verifier takes one nki kernel per graph and rejects two",
    "graph-device": "W env-vars: a CPU input of a graph is copied at each call, or refused by ..._DISABLE_CPU_AUTOCOPY=1",
    "graph-integers": "X: int64 token ids as a graph's input failed in the embedding; D release notes 2.32 on 64-bit types",
    # torch_neuronx.trace (xla)
    "trace-cpu-inputs": "D api-torch-neuronx-trace: traced modules take and return CPU tensors",
    "trace-keywords": "D api-torch-neuronx-trace: everything after the example inputs is keyword-only",
    "trace-outputs": "D api-torch-neuronx-trace: outputs are tensors or tuples of tensors, never None or ModelOutput",
    "trace-static": "D api-torch-neuronx-trace: fixed shapes and dtypes",
    "trace-lnc": "D logical-neuroncore-config: the compiler's --lnc and the runtime's must agree",
    "trace-weights": "D api-torch-neuronx-trace: without inlined weights, move_trace_to_device precedes the first call",
}


class Refused(RuntimeError):
    """What the real packages are documented to refuse (or to compute wrongly); `rule` is a key of `RULES`."""

    def __init__(self, rule: str, message: str) -> None:
        self.rule = rule
        super().__init__(f"[{rule}] {message} ({RULES[rule]})")


def refuse(rule: str, message: str) -> None:
    """Raise `Refused`."""
    raise Refused(rule, message)
