"""Kernels in which tests of lint plant what a front end refuses: in the kernel, in a helper, in a helper of another module."""

from nki_hf.tools.kernel_lint import lint

__all__ = ["HEAD", "HELPER", "KERNEL", "planted", "rules_of"]

HEAD = "import math\n\nfrom nki_hf.lang import nisa, nki, nl\n\nTILE = 128\n"

KERNEL = '''

@nki.jit
def kernel(x, scale=1.0):
    """Doc."""
    out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    tile = nl.ndarray((TILE, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    # BODY
    nisa.dma_copy(dst=out, src=tile)
    return out
'''

HELPER = '''

def helper(x, out, tile, scale):
    """Doc."""
    # BODY
    return tile
'''


def planted(place, body, folder):
    """Writes the kernel that holds `body` in that place; the file to lint and the one that must have the finding."""
    inserted = "\n    ".join(body.split("\n"))
    called = KERNEL.replace("# BODY", "helper(x, out, tile, scale)")
    helper = HELPER.replace("# BODY", inserted)
    texts = {
        "kernel": {"kernel.py": HEAD + KERNEL.replace("# BODY", inserted)},
        "helper": {"kernel.py": HEAD + helper + called},
        "module": {"kernel.py": HEAD + "from steps import helper\n" + called, "steps.py": HEAD + helper},
    }[place]
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder / "kernel.py", "steps.py" if place == "module" else "kernel.py"


def rules_of(file, wanted=None):
    rows = {row.file: row for row in lint(file)}
    return {found.rule for found in rows[wanted or "kernel.py"].findings["0.6"]}
