"""The kernel ladder: one idea per file, from every intermediate in HBM to software pipelining.

Calibration subjects of the timing model, and teaching material. They are written for clarity of the one idea, take sizes
that divide evenly and no mask; the product's kernel is kernels/flash_prefill/kernel.py.

All but the `sd_*` files take q, k, v `[128, seqlen]` bfloat16 in HBM (head_dim on partitions, q already scaled) and return
out `[seqlen, 128]`. The `sd_*` files (a Stable Diffusion shape) take and return `[seqlen, 64]` float32.
"""
