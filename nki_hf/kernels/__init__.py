"""The kernels (ordinary NKI), the float64 oracle and the plain-Python planning beside them."""
