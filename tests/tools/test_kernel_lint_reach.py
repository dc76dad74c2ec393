"""Which code is kernel code, however it is imported, named or handed on: a fault in it is found."""

import pytest
from test_kernel_lint_planted import HEAD, HELPER, KERNEL

from nki_hf.tools.kernel_lint import RULES, lint

BAD = "a = sorted((2, 1))"
HELP = HELPER.replace("# BODY", BAD)
STEPS = HEAD + HELP
RUN = f"\n    def run(self, tile):\n        {BAD}\n"
STATIC = f"\n    @staticmethod\n    def run(tile):\n        {BAD}\n"
CALL = "(x, out, tile, scale)"


def kernel(lines, body):
    """A kernel with that body, after those lines of the module."""
    return f"{HEAD}\n{lines}\n{KERNEL.replace('# BODY', body)}"


WAYS = {
    "import steps": {"kernel.py": kernel("import steps", "steps.helper" + CALL), "steps.py": STEPS},
    "import steps as s": {"kernel.py": kernel("import steps as s", "s.helper" + CALL), "steps.py": STEPS},
    "from steps import *": {"kernel.py": kernel("from steps import *", "helper" + CALL), "steps.py": STEPS},
    "another name": {"kernel.py": kernel("from steps import helper as h", "h" + CALL), "steps.py": STEPS},
    "from .steps": {"kernel.py": kernel("from .steps import helper", "helper" + CALL), "steps.py": STEPS, "__init__.py": ""},
    "from .": {"kernel.py": kernel("from . import steps", "steps.helper" + CALL), "steps.py": STEPS, "__init__.py": ""},
    "in full": {"kernel.py": kernel("import pkg.steps", "pkg.steps.helper" + CALL), "pkg/steps.py": STEPS,
                "pkg/__init__.py": ""},
    "in a package's own file": {"kernel.py": kernel("from pkg import helper", "helper" + CALL), "pkg/__init__.py": STEPS},
    "handed on by a package": {"kernel.py": kernel("from pkg import helper", "helper" + CALL), "pkg/steps.py": STEPS,
                               "pkg/__init__.py": "from .steps import helper\n"},
    "handed on, member": {"kernel.py": kernel("import pkg", "pkg.helper" + CALL), "pkg/steps.py": STEPS,
                          "pkg/__init__.py": "from .steps import helper\n"},
    "handed on by a star": {"kernel.py": kernel("from pkg import helper", "helper" + CALL), "pkg/steps.py": STEPS,
                            "pkg/__init__.py": "from .steps import *\n"},
    "no instruction in it": {"kernel.py": kernel("import steps", "a = steps.size(3)"),
                             "steps.py": f"def size(n):\n    {BAD}\n    return a[0]\n"},
    "in a try": {"kernel.py": kernel("try:\n    from steps import helper\nexcept ImportError:\n    helper = None",
                                     "helper" + CALL), "steps.py": STEPS},
    "a name in the kernel": {"kernel.py": kernel(HELP, "h = helper\n    h" + CALL)},
    "a name of the module": {"kernel.py": kernel(HELP + "\n\nh = helper", "h" + CALL)},
    "a table": {"kernel.py": kernel(HELP + "\n\nTABLE = {'a': helper}", "TABLE['a']" + CALL)},
    "a table elsewhere": {"kernel.py": kernel("from steps import TABLE", "TABLE[0]" + CALL),
                          "steps.py": STEPS + "\n\nTABLE = (helper,)\n"},
    "handed to another": {"kernel.py": kernel(HELP + "\n\ndef run(f, x, out, tile, scale):\n    f(x, out, tile, scale)",
                                              "run(helper, x, out, tile, scale)")},
    "a method": {"kernel.py": kernel("class Steps(nl.NKIObject):" + RUN, "s = Steps()\n    s.run(tile)")},
    "a static method elsewhere": {"kernel.py": kernel("import steps", "steps.Steps.run(tile)"),
                                  "steps.py": HEAD + "\n\nclass Steps(nl.NKIObject):" + STATIC},
    "a method of the base": {"kernel.py": kernel("class Base(nl.NKIObject):" + RUN + "\n\nclass Steps(Base):\n    pass",
                                                 "s = Steps()\n    s.run(tile)")},
    "a default": {"kernel.py": kernel("def helper(x, n=sorted((2, 1))):\n    return n", "helper(x)")},
    "a kernel by call": {"kernel.py": kernel("", BAD).replace("@nki.jit\n", "") + "\n\nkernel = nki.jit(kernel)\n"},
    "a kernel in a function": {"kernel.py": f"{HEAD}\n\ndef make():\n    @nki.jit\n    def kernel(x):\n        {BAD}\n"
                                            "        return x\n    return kernel\n"},
    "Python's function under another name": {"kernel.py": kernel("order = sorted", "a = order((2, 1))")},
    "the same elsewhere": {"kernel.py": kernel("from steps import order", "a = order((2, 1))"), "steps.py": "order = sorted\n"},
    "from builtins": {"kernel.py": kernel("from builtins import sorted as order", "a = order((2, 1))")},
    "member of builtins": {"kernel.py": kernel("import builtins as b", "a = b.sorted((2, 1))")},
}  # fmt: skip

OWN = {
    "a function of that name": {"kernel.py": kernel("def sorted(v):\n    return v", BAD)},
    "an imported one": {"kernel.py": kernel("from steps import sorted", BAD), "steps.py": "def sorted(v):\n    return v\n"},
    "one of a star": {"kernel.py": kernel("from steps import *", BAD), "steps.py": "def sorted(v):\n    return v\n"},
    "a parameter": {"kernel.py": kernel("def helper(sorted):\n    return sorted(1)", "helper(x)")},
    "beside the kernel": {"kernel.py": kernel(HELP.replace("def helper", "def reference"), "pass")},
}


def rules(files, folder):
    for name, text in files.items():
        (folder / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "top" / name).write_text(text)
    rows = lint(folder / "top" / "kernel.py")
    return {found.rule for row in rows for found in row.findings["0.6"] if RULES[found.rule].refused}


@pytest.mark.parametrize("way", WAYS)
def test_a_fault_is_found_whatever_the_way_to_it(way, tmp_path):
    assert "builtin" in rules(WAYS[way], tmp_path)


@pytest.mark.parametrize("way", OWN)
def test_a_name_of_ones_own_is_none_of_pythons(way, tmp_path):
    assert rules(OWN[way], tmp_path) == set()


def test_tiles_are_followed_into_a_function_under_another_name(tmp_path):
    """The DMA of a tile in PSUM stands in a helper that the kernel calls by another name."""
    bank = "bank = nl.ndarray((128, 8), nl.float32, nl.psum)\n    go(out, bank)"
    files = {
        "kernel.py": kernel("from steps import drop as go", bank),
        "steps.py": HEAD + "\n\ndef drop(out, tile):\n    nisa.dma_copy(dst=out, src=tile)\n",
    }
    assert rules(files, tmp_path) == {"psum-in-dma"}
