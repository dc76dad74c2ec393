"""Fixtures of the suites: a fresh machine for each test, and the seam for tensors that only stand for device tensors."""

import os
import runpy
from pathlib import Path
from unittest import mock

import pytest
import typer
from typer.testing import CliRunner

if os.environ["FAKE_NEURON_WORLD"] in ("native", "xla"):
    import torch_neuronx  # noqa: F401  (torch loads the native one by itself on a real machine)
    from fake_neuron import MACHINE
    from fake_neuron.tensor import DeviceTensor, XlaTensor

    from nki_hf.adapters import device
    from nki_hf.tools.model_bench.device.plan import environment
    from nki_hf.tools.model_bench.options import BenchOptions

    device.PLAIN_TENSORS = (*device.PLAIN_TENSORS, DeviceTensor, XlaTensor)

    @pytest.fixture(autouse=True)
    def _fresh_machine():
        MACHINE.reset()


@pytest.fixture
def script_of():
    """`script_of(message, step)`: q, k and v of the launch by the bisect command that a message ends with, that step alone."""
    app = typer.Typer()
    app.command()(runpy.run_path(str(Path(__file__).parents[3] / "examples" / "device_bisect.py"))["main"])

    def run(message, step):
        words = message.split("examples/device_bisect.py ")[1].split()
        MACHINE.reset()
        # The script is a process of its own, which sets its variables before anything reads them.
        early = environment(BenchOptions(), words[words.index("--device") + 1])
        seen = {name: text for name, text in early.items() if name in MACHINE.at_import}
        with mock.patch.dict(os.environ, early), mock.patch.dict(MACHINE.at_import, seen):
            done = CliRunner().invoke(app, [*words, "--step", step], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        tensors = zip("qkv", MACHINE.launches[0][0][2:5], strict=True)  # a key starts with kernel and LNC
        return [f"{name}={list(sizes)} {dtype.removeprefix('torch.')}" for name, (sizes, dtype) in tensors]

    return run


_counts = []


@pytest.fixture
def counted():
    """`counted(run, number, what)`: a line of the table of compilations at the end of the suite; gives the number back."""

    def note(run, number, what="kernels"):
        _counts.append(f"{run:<90} {number:>4} {what}")
        return number

    return note


def pytest_terminal_summary(terminalreporter):
    if _counts:
        terminalreporter.section("compilations counted")
        for line in _counts:
            terminalreporter.write_line(line)
