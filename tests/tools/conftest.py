"""Pages of `nki_hf report`, each made once, and the browser that opens them."""

import pytest
from headless import Browser
from report_pages import OWN, side_by_name
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.modelled import ModelRequest
from nki_hf.tools.pages.report_page import report_page
from nki_hf.tools.report import side_of


@pytest.fixture(scope="session")
def side():
    return side_by_name("v7", 2048)


@pytest.fixture(scope="session")
def made(side, tmp_path_factory):
    """Pages by name."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "one": report_page(side, notes=("Made by a test",)),
        "two": report_page(side, side_by_name("v11", 1024)),
        "spilled": report_page(side_by_name("v3", 1024)),
        "cores": report_page(side_of(ModelRequest(kernel="flash_prefill", seqlen=512, chip="trn2", lnc=2), window=64)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return folder


@pytest.fixture(scope="session")
def browser():
    with Browser() as found:
        yield found


@pytest.fixture(scope="session")
def own(tmp_path_factory):
    """Pages of a user's kernel: alone, and against another file of the task, from the command itself."""
    folder = tmp_path_factory.mktemp("own")
    kernel, fused = folder / "kernel.py", folder / "fused.py"
    kernel.write_text(OWN)
    both = "nisa.activation_reduce(dst=power, op=nl.exp, data=tile, reduce_op=nl.add, reduce_res=total)"
    fused.write_text(
        "\n".join(
            line.split("nisa.")[0] + both if "nisa.activation(" in line else line
            for line in OWN.splitlines()
            if "nl.add" not in line
        )
    )
    words = ("--task", "softmax", "--at", "4096", "--chip", "trn2")
    for name, more in (("own", ()), ("both", ("--against", f"{fused}:rows"))):
        done = CliRunner().invoke(app, ["report", str(kernel), *words, *more, "-o", str(folder / f"{name}.html")])
        assert done.exit_code == 0, done.output
    return folder
