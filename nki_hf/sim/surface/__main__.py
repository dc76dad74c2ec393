"""`python -m nki_hf.sim.surface` prints the documentation page."""

from __future__ import annotations

import sys

from nki_hf.sim.surface.page import page

sys.stdout.write(page())
