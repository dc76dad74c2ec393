"""The names under which kernels import the language."""
