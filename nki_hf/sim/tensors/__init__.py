"""Tensors of a kernel: views, values, registers."""
