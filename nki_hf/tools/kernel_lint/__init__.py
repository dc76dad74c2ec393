"""Static checks of kernel source against what NKI 0.3 to 0.7 are known to reject."""

from __future__ import annotations

from nki_hf.tools.kernel_lint.check import KERNELS, Row, lint, lint_source
from nki_hf.tools.kernel_lint.rule import RULES, VERSIONS, Finding, Rule

__all__ = ["KERNELS", "RULES", "VERSIONS", "Finding", "Row", "Rule", "lint", "lint_source"]
