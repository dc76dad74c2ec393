"""A rehearsal: any command of this project against stand-ins for AWS's packages, in processes like those of a device.

    python tests/fakes/rehearse.py native examples/qwen3_bench.py --device neuron --layers 1 --seqlen 128
    python tests/fakes/rehearse.py xla examples/device_bisect.py --device xla --seqlen 128 --layers 2
    python tests/fakes/rehearse.py container -m nki_hf env

Values come from the simulator; times mean nothing. Compiled models are kept in out/rehearsal/<world>, as a device's are in the
user's cache. The last lines say what each process made the compilers build, and what it found already built.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

FAKES = Path(__file__).parent
ROOT = FAKES.parent.parent
WORLDS = ("native", "xla", "placeholder", "container", "no_path")


def environment(world, folder, before=os.environ):
    """Variables of a process in that world, over those of `before`; caches, core and log of compilations are in `folder`, also
    where `before` names another cache: what a stand-in builds must neither lie in a user's nor be found there.
    """
    path = [ROOT, FAKES / "rehearsal", FAKES / world]
    if world != "placeholder":  # an empty nki must not find the fake one
        path.append(FAKES / "common")
    models = Path(before.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    kept = {name: str(folder / "neff") for name in ("TORCH_NEURONX_NEFF_CACHE_DIR",) if name in before}
    return {
        "HF_HOME": str(models),
        **before,
        **kept,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "FAKE_NEURON_WORLD": world,
        "FAKE_NEURON_CORE": str(folder / "core"),
        "FAKE_NEURON_LOG": str(folder / "processes.jsonl"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def processes(folder):
    """What each process that touched the stand-ins did, in the order of their ends: argv, compiled, loaded, waits."""
    log = folder / "processes.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def rehearse(world, words):
    """Run `python <words>` in that world; returns its exit code."""
    folder = ROOT / "out" / "rehearsal" / world
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "processes.jsonl").unlink(missing_ok=True)
    code = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment(world, folder)).returncode
    for number, process in enumerate(processes(folder), start=1):
        words = " ".join(process["argv"][1:])
        print(f"process {number}: compiled {_spelled(process['compiled'])}; found {_spelled(process['loaded'])}  ({words})")
    return code


def _spelled(counts):
    return ", ".join(f"{count} {what}" for what, count in counts.items()) or "nothing"


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in WORLDS:
        sys.exit(f"usage: python {sys.argv[0]} {{{','.join(WORLDS)}}} SCRIPT.py|-m MODULE [FLAGS...]")
    sys.exit(rehearse(sys.argv[1], sys.argv[2:]))
