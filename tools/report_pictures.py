"""Pictures of report pages: made by `nki_hf report`, opened in a headless browser at three widths, light and dark.

    python tools/report_pictures.py                # into out/report_pictures/
    python tools/report_pictures.py --folder F kernel.py:mine --task attention_causal
    python tools/report_pictures.py --docs         # docs/images/report.png and report_dark.png

Each page must have drawn itself, complain of nothing, ask the network for nothing and reach over no edge: else exit code 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headless import Browser

WIDTHS = (1280, 800, 390)
DRAWN = 'document.documentElement.dataset.drawn === "yes"'
PAGES = {
    "1k": ("--kernel", "v11", "--seqlen", "1024", "--chip", "trn1"),
    "1k_against_v7": ("--shape", "sq=1024", "--chip", "trn2", "--against", "v7"),
    "16k": ("--seqlen", "16384", "--chip", "trn2"),
}
"""Name of a picture -> the words of `nki_hf report`."""


def main() -> int:
    """Make the pages and their pictures, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="only the pictures of the documentation")
    parser.add_argument("--folder", type=Path, default=Path("out/report_pictures"), help="where the files go")
    options, own = parser.parse_known_args()
    if options.docs:
        draw_docs()
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    pages = {**({"own": tuple(own)} if own else {}), **PAGES}
    wrong = 0
    with Browser() as browser:
        for name, words in pages.items():
            page = options.folder / f"{name}.html"
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "nki_hf", "report", *words, "-o", str(page)], capture_output=True, text=True
            )
            if done.returncode:
                print(done.stderr, end="", file=sys.stderr)
                return 2
            print(f"{page}: {page.stat().st_size / 2**20:.2f} MiB, {time.perf_counter() - began:.1f} s")
            for width in WIDTHS:
                for dark in (False, True):
                    browser.open(page, width=width, dark=dark, ready=DRAWN)
                    found = [*browser.complaints, *browser.overflowing()]
                    wrong += len(found)
                    browser.screenshot(options.folder / f"{name}.{width}.{'dark' if dark else 'light'}.png")
                    print(f"  {width} px, {'dark' if dark else 'light'}: {'; '.join(found) or 'nothing to complain of'}")
    return 1 if wrong else 0


def draw_docs() -> None:
    """The first screen of one page."""
    images = Path(__file__).parents[1] / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        page = Path(folder) / "page.html"
        words = ("--kernel", "v7", "--seqlen", "4096", "--chip", "trn1", "-o", str(page))
        subprocess.run([sys.executable, "-m", "nki_hf", "report", *words], check=True, capture_output=True)
        for dark in (False, True):
            browser.open(page, width=1100, height=900, dark=dark, ready=DRAWN)
            browser.screenshot(images / f"report{'_dark' if dark else ''}.png", whole=False)


if __name__ == "__main__":
    sys.exit(main())
