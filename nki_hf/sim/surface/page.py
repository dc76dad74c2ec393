"""The documentation page of the lists."""

from __future__ import annotations

from collections import Counter

from nki_hf.sim.sdk.as_nki import modules
from nki_hf.sim.surface import NAMESPACES, STATUSES

__all__ = ["page"]

_HEAD = """\
# What of NKI the simulator has

Every public name of NKI 0.6 that a kernel may use, and those that 0.7 adds as far as public pages name them, with the
signature as documented. *exact*: does what is documented.
*approximate*: differs as the remark says. *refused*: raises, for the reason in the remark. Parameters without an effect on
values (`name`, `priority`, `dge_mode`, ...) are accepted and reach the timing model where they matter there.

Whether the list is complete is compared with the public stubs by `python tools/conformance/stub_names.py CHECKOUT`.

Made from `nki_hf/sim/surface/` by `python -m nki_hf.sim.surface > docs/nki_surface.md`; a test keeps both true.
"""


def page() -> str:
    """The page as Markdown: a table of counts, then a table per namespace."""
    lines = [_HEAD, "| namespace | names | " + " | ".join(STATUSES) + " |", "|---|---:|" + "---:|" * len(STATUSES)]
    for namespace, names in NAMESPACES.items():
        counts = Counter(entry.status for entry in names.values())
        lines.append(f"| `{namespace}` | {len(names)} | " + " | ".join(str(counts[status]) for status in STATUSES) + " |")
    for namespace, names in NAMESPACES.items():
        lines += ["", f"## `{namespace}`", "", "| name | status | remark |", "|---|---|---|"]
        for name, entry in sorted(names.items(), key=lambda item: item[0].lower()):
            shown = f"`{name}{entry.signature}`".replace("|", "\\|")
            since = f"since {entry.since}" if entry.since else ""
            remark = "; ".join(part for part in (since, entry.note) if part)
            lines.append(f"| {shown} | {entry.status} | {remark} |")
    lines += ["", "## Modules", "", "Names that can be imported inside `nki_hf.sim.sdk.as_nki()`, in every form of import:", ""]
    lines += [", ".join(f"`{name}`" for name in sorted(modules())) + "."]
    lines += [
        "",
        "`nki.language.opcode`, `nki.language.dtypes`, `nki.isa.constants`, `nki.dtype`, `nki.tensor` and `nki.meta.tensor`",
    ]
    lines += ["hold names of `nki.language` and `nki.isa` (operators, dtypes, enumerations, `NkiTensor`) and nothing else."]
    return "\n".join(lines) + "\n"
