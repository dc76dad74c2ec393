"""`nki` and its small submodules: entry points, annotations, compile configuration, loops."""

from __future__ import annotations

from nki_hf.sim.surface.entry import Entry, approximate, exact, refused

__all__ = ["COMPILER", "EXPERIMENTAL", "KERNEL_BUILDER", "NKI", "TYPING"]


NKI: dict[str, Entry] = {
    "jit": exact(
        "(fn=None, *, platform_target=None, **kwargs)",
        note="platform_target chooses the chip; the other arguments for the compiler have no effect",
    ),
    "simulate": exact("(kernel)"),
    "__version__": exact("", note="0.6.0: the version whose every public name is there"),
}

TYPING: dict[str, Entry] = {
    "mutable_tensor": exact("", note="an annotation, without effect"),
    "tensor": exact("", note="an annotation, without effect"),
}

_CONFIGURATION = "accepted with any arguments, which it keeps as attributes; without effect on a simulated run"

COMPILER: dict[str, Entry] = {
    "AddressRotation": approximate("", _CONFIGURATION, since="0.7"),
    "CompileConfig": approximate("", _CONFIGURATION, since="0.7"),
    "SpecializationConfig": approximate("", _CONFIGURATION, since="0.7"),
}

KERNEL_BUILDER: dict[str, Entry] = {
    "compile_kernel": refused("(*args, **kwargs)", "nothing is compiled here; the whole signature is not public"),
}

EXPERIMENTAL: dict[str, Entry] = {
    "fori_loop": exact("", note="the same as nki.language.fori_loop", since="0.7"),
    "while_loop": exact("", note="the same as nki.language.while_loop", since="0.7"),
}
