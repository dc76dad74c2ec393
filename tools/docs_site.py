"""Build the documentation site, strictly, and check every link and picture of what was built.

    python tools/docs_site.py [FOLDER]        # default: out/site; `make docs` does the same after installing the extra `docs`

The pages are docs/ and, made on the way, a report page for each step of the tutorial. Exit code 1: a warning, or a link that
leads nowhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))

from nki_hf.errors import require
from nki_hf.tools.program import finished
from tools.page_block import replace_block
from tools.tutorial import STEPS, write_pages

__all__ = ["broken_links", "build"]

ROOT = Path(__file__).parent.parent


def build(folder: Path) -> int:
    """Build into `folder`; the number of broken links, or mkdocs' exit code if it refuses.

    Raises:
      BackendUnavailable: the extra `docs` is not installed.
    """
    require("the site", "docs", "mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python")
    with tempfile.TemporaryDirectory() as work:
        pages = Path(work) / "docs"
        shutil.copytree(ROOT / "docs", pages)
        write_pages(pages / "pages")
        links = [f"[{step.stem.partition('_')[0]}](pages/{step.stem}.html)" for step in STEPS]
        replace_block(pages / "tutorial.md", "reports", f"Report pages, simulated on trn2: {', '.join(links)}.")
        environment = {
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "NKI_HF_DOCS": str(pages),
            "NKI_HF_SITE": str(folder.resolve()),
        }
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(ROOT / "mkdocs.yml")]
        code = subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode
    if code:
        return code
    broken = broken_links(folder)
    for page, target in broken:
        print(f"{page}: {target} leads nowhere", file=sys.stderr)
    print(f"{folder / 'index.html'}: {len(list(folder.rglob('*.html')))} pages, {len(broken)} broken links")
    return len(broken)


class _Links(HTMLParser):
    """Targets and anchors of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag points at, and what it is pointed at by."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.targets.append(value)
            elif value and name == "srcset":
                self.targets += [part.split()[0] for part in value.split(", ") if not part.startswith("data:")]
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def broken_links(folder: Path) -> list[tuple[str, str]]:
    """Page and target of every link, picture, script or anchor within the site that is not there; other sites are not asked."""
    found = {}
    for page in sorted(folder.rglob("*.html")):
        found[page.resolve()] = links = _Links()
        links.feed(page.read_text(encoding="utf-8"))
    broken = []
    for page, links in found.items():
        if page.name == "404.html":  # its links are absolute, for a server
            continue
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            path = path / "index.html" if path.is_dir() else path
            anchor = unquote(parts.fragment)
            known = found.get(path)
            missing = bool(anchor) and known is not None and anchor not in known.anchors and anchor != "__skip"
            if not path.exists() or missing:
                broken.append((str(page.relative_to(folder.resolve())), target))
    return broken


def main() -> int:
    """Build into the folder that was named."""
    if len(sys.argv) > 2 or any(word.startswith("-") for word in sys.argv[1:]):
        print(__doc__)
        return 2
    return 1 if build(Path(sys.argv[1]) if len(sys.argv) == 2 else ROOT / "out" / "site") else 0


if __name__ == "__main__":
    raise SystemExit(finished(main))
