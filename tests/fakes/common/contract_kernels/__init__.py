"""Small kernels for the contract: one that keeps it, and some that break one rule each."""
