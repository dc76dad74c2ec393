"""The xla package in a venv that is not activated: the program that it starts at import is not on PATH."""

import subprocess

subprocess.run(["libneuronpjrt-path"], check=True)
