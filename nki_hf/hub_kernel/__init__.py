"""The kernel folder that the `kernels` package loads under the name "nki-hf/flash-attention" (see adapters/hub_kernel.py).

It is read from its path, not imported by its name: the functions are those of `nki_hf.flash_attn`.
"""

from nki_hf.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
