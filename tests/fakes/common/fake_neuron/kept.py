"""What outlives a process: the NEFF cache of the native world, and the core, which belongs to one process at a time."""

import fcntl
import hashlib
import os
from pathlib import Path

from fake_neuron.rules import refuse

__all__ = ["in_neff_cache", "reserve_core"]

_held = []


def in_neff_cache(record):
    """True if TORCH_NEURONX_NEFF_CACHE_DIR holds that compilation; if not, it does now."""
    folder = os.environ.get("TORCH_NEURONX_NEFF_CACHE_DIR")
    if folder is None or os.environ.get("FAKE_NEURON_WORLD") != "native":
        return False
    text = repr((record.what, record.key))
    path = Path(folder) / f"{hashlib.sha256(text.encode()).hexdigest()}.neff"
    if path.exists():
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return False


def reserve_core():
    """Take the core for the rest of this process; only where FAKE_NEURON_CORE names its lock."""
    name = os.environ.get("FAKE_NEURON_CORE")
    if name is None or _held:
        return
    file = open(name, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        refuse("core-one-process", "another process holds the core")
    _held.append(file)
