"""The functions of the package `flash_attn` (FlashAttention 2), its signatures and meanings, on the kernels of this package.

Other libraries call attention by these three names: `from nki_hf.flash_attn import flash_attn_varlen_func`. What they ask for
that no kernel does is refused by name, or computed by torch and counted (dropout, dtypes), as everywhere in this package.

Causal and windowed masks are aligned so that the last query stands at the last key. The lse includes the sink (`s_aux`), if one
is given. A row that sees no key is zeros, its lse the sink, or -inf without one. Results do not depend on the order of work, so
that `deterministic` and `num_splits` change nothing.
"""

from __future__ import annotations

from nki_hf.adapters.flash_face import flash_attn_func, flash_attn_varlen_func
from nki_hf.adapters.flash_kvcache import flash_attn_with_kvcache

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
