"""What a kernel asks of the place where it runs: its result of `nki_hf tune` counts while the answers are as they were."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from typer.testing import CliRunner

from nki_hf.cli import app
from nki_hf.tools.judging.named_kernels import named
from nki_hf.tools.searching.options import judge_options
from nki_hf.tools.tuning.cases import file_cases
from nki_hf.tools.tuning.surroundings import unchanged
from nki_hf.tools.tuning.trial import Trials
from tests.support.tuned_kernels import SMALL, TUNED, tuned


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(TUNED)
    return path


COUNTED = TUNED.replace("range(extra)", "range(extra + count())")
_IMPORTED = "import sys\nsys.path.insert(0, {folder!r})\n"
_THERE = "def count():\n    return {expression}\n"
SURROUNDINGS = {
    "a text": ("import pathlib\nC = int(pathlib.Path({path!r}).read_text())\ndef count():\n    return C\n", "1", "3"),
    "an array": ("import numpy as np\ndef count():\n    return np.fromfile({path!r}, np.uint8)[0] - 48\n", "1", "3"),
    "a text while it is traced": ("def count():\n    return int(open({path!r}, 'rb').read())\n", "1", "3"),
    "a text in vain": ("def count():\n    try: return int(open({path!r}).read())\n    except OSError: return 0\n", None, "3"),
    "a link": ("def count():\n    return int(open({path!r}).read())\n", "-> one", "-> three"),
    "a listed folder": ("import os\nC = len(os.listdir({folder!r}))\ndef count():\n    return C\n", None, "3"),
    "a module": (_IMPORTED + "from {module} import count\n", "def count(): return 1", "def count(): return 3"),
    "a module that an earlier trial imported": (
        _IMPORTED + "def count():\n    import {module}\n    return {module}.count()\n",
        "def count(): return 1", "def count(): return 3",
    ),
    "a module in vain": (
        _IMPORTED + "try: from {module} import count\nexcept ImportError:\n    def count(): return 0\n",
        None, "def count(): return 3",
    ),
    "a module in vain while it is traced": (
        _IMPORTED + "def count():\n    try: import {module}\n    except ImportError: return 0\n    return 3\n", None, "",
    ),
    "find_spec": (_IMPORTED + "from importlib.util import find_spec\n"
                  "def count():\n    return 3 * (find_spec({module!r}) is not None)\n", None, ""),
    "os.path.exists": ("import os\ndef count():\n    return 3 * os.path.exists({path!r})\n", None, ""),
    "Path.exists": ("from pathlib import Path\nC = 3 * Path({path!r}).exists()\ndef count():\n    return C\n", None, ""),
    "isfile, no more there": ("from os.path import isfile\ndef count():\n    return 3 - 2 * isfile({path!r})\n", "", None),
    "os.access": ("import os\ndef count():\n    return 3 * os.access({path!r}, os.R_OK)\n", None, ""),
    "its size": ("import os\ndef count():\n    return os.path.getsize({path!r})\n", "1", "333"),
    "glob": ("import glob\ndef count():\n    return 3 * len(glob.glob({folder!r} + '/*.py'))\n", None, ""),
    "environ.get": ("import os\ndef count():\n    return int(os.environ.get('NKI_HF_T', '1'))\n", {}, {"NKI_HF_T": "3"}),
    "environ[]": ("import os\ndef count():\n    return int(os.environ['NKI_HF_T'])\n", {"NKI_HF_T": "1"}, {"NKI_HF_T": "3"}),
    "getenv, no more set": ("import os\ndef count():\n    return int(os.getenv('NKI_HF_T', '3'))\n", {"NKI_HF_T": "1"}, {}),
    "in environ": ("import os\ndef count():\n    return 3 * ('NKI_HF_T' in os.environ)\n", {}, {"NKI_HF_T": ""}),
    "environb": ("import os\ndef count():\n    return int(os.environb.get(b'NKI_HF_T', b'1'))\n", {}, {"NKI_HF_T": "3"}),
    "an entry's size": (
        "import os\nC = sum(e.stat().st_size for e in os.scandir({folder!r}))\ndef count():\n    return C\n",
        "1", "333",
    ),
    "an entry's kind": (
        "from os import scandir\ndef count():\n    return sum(3 * e.is_symlink() for e in scandir({folder!r}))\n",
        "1", "-> one",
    ),
    "an entry's mode": (
        "import os\ndef count():\n    return sum(3 * (e.stat().st_mode & 1) for e in os.scandir({folder!r}))\n",
        "1", "mode 755",
    ),
    "the sizes of a walk": (
        "import os\ndef count():\n"
        "    return sum(e.stat().st_size for at, _, _ in os.walk({folder!r}) for e in os.scandir(at))\n",
        "1", "333",
    ),
    "realpath": (
        "import os\ndef count():\n    return 3 * os.path.realpath({path!r}).endswith('three')\n",
        "-> one", "-> three",
    ),
    "resolve": (
        "from pathlib import Path\ndef count():\n    return 3 * (Path({path!r}).resolve().name == 'three')\n",
        "-> one", "-> three",
    ),
    "readlink": ("import os\ndef count():\n    return 3 * os.readlink({path!r}).endswith('three')\n", "-> one", "-> three"),
    "samefile": (
        "import os\ndef count():\n    return 3 * os.path.samefile({path!r}, {folder!r} + '/../three')\n",
        "-> one", "-> three",
    ),
    "islink": ("import os\ndef count():\n    return 3 * os.path.islink({path!r})\n", "1", "-> one"),
    "its mode": ("import os\ndef count():\n    return 3 * (os.stat({path!r}).st_mode & 1)\n", "1", "mode 755"),
    "every variable": ("import os\ndef count():\n    return 3 * ('NKI_HF_T' in dict(os.environ))\n", {}, {"NKI_HF_T": ""}),
}  # fmt: skip
"""How a kernel finds out how many instructions more it has; what there is at `path` (its text, None = nothing), or which
variables are set, before and after.
"""


def _set(path, state, monkeypatch):
    if isinstance(state, dict):
        monkeypatch.delenv("NKI_HF_T", raising=False)
        for name, value in state.items():
            monkeypatch.setenv(name, value)
        return
    if state is not None and state.startswith("mode "):
        path.chmod(int(state.removeprefix("mode "), 8))
        return
    path.unlink(missing_ok=True)
    if state is not None and state.startswith("-> "):
        path.symlink_to(path.parent.parent / state.removeprefix("-> "))
    elif state is not None:
        path.write_text(state)


@pytest.mark.parametrize("how", SURROUNDINGS)
def test_a_result_counts_while_all_that_its_kernel_asked_for_is_as_it_was(file, tmp_path, monkeypatch, how):
    """The second of two trials in one process, which asks less, and one in a new process after the change."""
    head, before, after = SURROUNDINGS[how]
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "one").write_text("1")
    (tmp_path / "three").write_text("3")
    module = f"helper_{list(SURROUNDINGS).index(how)}"
    path = folder / f"{module}.py"
    file.write_text(head.format(path=str(path), folder=str(folder), module=module) + COUNTED)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # as a worker has them
        monkeypatch.setenv(name, "1")
    _set(path, before, monkeypatch)
    (case,) = file_cases(named(str(file), "softmax"), "softmax", judge_options(at="256", chip="trn2"), None)

    def result(trials, extra):
        job = {**case.job, "constants": repr({**case.job["given"], "extra": extra}), "tuned": ["extra"], "best_us": None}
        return trials.run(job)

    trials = Trials()
    result(trials, 0)
    first = result(trials, 1)
    assert unchanged(first["around"], file)
    (tmp_path / "something else").write_text("")
    monkeypatch.setenv("NKI_HF_OTHER", "1") if how != "every variable" else None
    assert unchanged(first["around"], file)
    _set(path, after, monkeypatch)
    assert not unchanged(first["around"], file)
    sys.modules.pop(module, None)
    sys.path_importer_cache.clear()
    assert result(Trials(), 1)["us"] > first["us"]


def test_what_changed_around_a_kernel_is_found_out_again_by_the_command(file, tmp_path, monkeypatch):
    """A file, then a module that is looked for in vain, then a variable; each result is found again until then."""
    folder = tmp_path / "mit Ü und raum"
    folder.mkdir()
    head = (
        f"import os, sys\nsys.path.insert(0, {str(folder)!r})\n"
        "try: from helper_around import COUNT\nexcept ImportError: COUNT = 0\n"
        f"COUNT += os.path.exists({str(folder / 'there')!r}) + int(os.environ.get('NKI_HF_T', '0'))\n"
    )
    file.write_text(head + TUNED.replace("range(extra)", "range(extra + COUNT)"))
    words = [str(file), *SMALL, "--const", "extra=0..1", "--cache", str(tmp_path / "cache"), "--no-judge"]
    times = [tuned(*words)[0]["us"]]
    for change in (
        lambda: (folder / "there").touch(),
        lambda: (folder / "helper_around.py").write_text("COUNT = 1\n"),
        lambda: monkeypatch.setenv("NKI_HF_T", "1"),
    ):
        assert tuned(*words)[0]["reloaded"] == 2
        change()
        (found,) = tuned(*words)
        assert found["reloaded"] == 0
        times.append(found["us"])
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    "how",
    [
        "os.getcwd()",
        "str(pathlib.Path.cwd())",
        "os.path.abspath('x')",
        "os.path.realpath('.')",
        "str(pathlib.Path('x').resolve())",
        "os.getcwdb().decode()",
    ],
)
def test_a_kernel_that_asks_where_it_runs_is_tuned_anew_elsewhere(file, tmp_path, monkeypatch, how):
    head = f"import os, pathlib\nCOUNT = 3 * ('three' in {how})\n"
    file.write_text(head + TUNED.replace("range(extra)", "range(extra + COUNT)"))
    words = [str(file), *SMALL, "--const", "extra=0", "--cache", str(tmp_path / "cache"), "--no-judge"]
    times = []
    for name in ("1", "three"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        times.append(tuned(*words)[0])
    assert [found["reloaded"] for found in times] == [0, 0]
    assert times[0]["us"] < times[1]["us"]


UNNOTED = {
    "socket.gethostname()": "socket.gethostname", "os.uname().nodename": "uname", "platform.node()": "uname",
    "os.cpu_count()": "cpu_count", "os.getpid()": "getpid", "os.getuid()": "getuid",
    "os.stat('x', dir_fd=os.open('/', os.O_RDONLY)) if os.path.exists('/x') else os.access('x', 0, dir_fd=os.open('/', 0))":
        "an open folder's number",
    "os.stat(os.open('/', os.O_RDONLY)).st_size": "an open file's number",
}  # fmt: skip


@pytest.mark.parametrize("how", UNNOTED)
def test_no_result_is_kept_of_a_kernel_that_asks_what_cannot_be_noted(file, tmp_path, how):
    file.write_text(f"import os, platform, socket\nASKED = {how}\n" + TUNED)
    words = [str(file), *SMALL, "--const", "extra=0", "--cache", str(tmp_path / "cache"), "--no-judge"]
    for _ in range(2):
        (found,) = tuned(*words)
        assert found["reloaded"] == 0
        assert UNNOTED[how] in found["not_kept"]


def test_a_copy_of_a_kernel_that_asks_where_it_lies_is_tuned_anew(file, tmp_path):
    head = "import os\nCOUNT = 3 * ('again' in os.path.basename(__file__))\n"
    file.write_text(head + TUNED.replace("range(extra)", "range(extra + COUNT)"))
    shutil.copy(file, tmp_path / "again.py")
    words = [*SMALL, "--const", "extra=0", "--cache", str(tmp_path / "cache"), "--no-judge"]
    first, second, again = (tuned(str(tmp_path / name), *words)[0] for name in ("kernel.py", "again.py", "again.py"))
    assert (first["reloaded"], second["reloaded"], again["reloaded"]) == (0, 0, 1)
    assert first["us"] < second["us"] == again["us"]


def test_no_result_is_kept_of_a_kernel_that_asks_another_program(file, tmp_path):
    """What that program reads is in no digest."""
    head = "import subprocess\nCOUNT = int(subprocess.run(['echo', '1'], capture_output=True).stdout)\n"
    file.write_text(head + TUNED.replace("range(extra)", "range(extra + COUNT)"))
    words = [str(file), *SMALL, "--const", "extra=0..1", "--cache", str(tmp_path / "cache"), "--no-judge"]
    for _ in range(2):
        (found,) = tuned(*words)
        assert (found["reloaded"], found["not_kept"]) == (0, ["subprocess.Popen"])
    assert "no result is kept" in " ".join(CliRunner().invoke(app, ["tune", *words]).stdout.split())


def test_what_is_noticed_is_no_secret(file, tmp_path, monkeypatch):
    monkeypatch.setenv("NKI_HF_T", "geheim")
    file.write_text("import os\nos.environ.get('NKI_HF_T')\n" + TUNED)
    tuned(str(file), *SMALL, "--const", "extra=0", "--cache", str(tmp_path / "cache"), "--no-judge")
    (results,) = (tmp_path / "cache").iterdir()
    (row,) = [json.loads(line) for line in results.read_text().splitlines() if "'extra', 0" in line]
    assert "variable NKI_HF_T" in row["around"]
    assert "geheim" not in results.read_text()
