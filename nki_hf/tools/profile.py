"""`nki_hf profile FILE`: what is in the event file that the benchmark's `--profile` wrote on a CPU."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from nki_hf.tools.input_files import check_regular
from nki_hf.tools.screen import Screen

__all__ = ["Launch", "command", "read_launches", "shape_of"]

_LINES = 8
"""Kernel lines that are listed."""


@dataclass(kw_only=True)
class Launch:
    """One launch of the file.

    Attributes:
      head: its header: kernel, chip, lnc, problem, mask.
      engines: instructions by engine.
      opcodes: instructions by engine and opcode.
      lines: instructions by file and line.
      hbm: bytes read from HBM and written there, as the events name them.
    """

    head: dict[str, Any]
    engines: Counter[str] = field(default_factory=Counter)
    opcodes: Counter[tuple[str, str]] = field(default_factory=Counter)
    lines: Counter[tuple[str, int]] = field(default_factory=Counter)
    hbm: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Instructions."""
        return sum(self.engines.values())


def read_launches(path: Path) -> list[Launch]:
    """The launches of an event file, in its order.

    Raises:
      ValueError: it cannot be read, or a line is no event; the message says which.
    """
    found: list[Launch] = []
    try:
        check_regular(path)
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                _take(found, line, f"file={path}, line {number}")
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not UTF-8"
        raise ValueError(f"file={path} cannot be read ({why}): give the .events.jsonl that --profile wrote.") from None
    if not found:
        raise ValueError(f"file={path} holds no launch: give the .events.jsonl that --profile wrote.")
    return found


def _take(found: list[Launch], line: str, where: str) -> None:
    try:
        item = json.loads(line)
        if "launch" in item:
            head = item["launch"]
            found.append(
                Launch(
                    head={
                        "kernel": head["kernel"],
                        "chip": head["chip"],
                        "lnc": int(head["lnc"]),
                        "problem": dict(head["problem"]),
                        "mask": dict(head["mask"]),
                    }
                )
            )
            return
        launch = found[-1]
        launch.engines[str(item["engine"])] += 1
        launch.opcodes[str(item["engine"]), str(item["opcode"])] += 1
        launch.lines[str(item["file"]), int(item["line"])] += 1
        for side in ("reads", "writes"):
            launch.hbm[side] += sum(int(region["bytes"]) for region in item[side] if str(region["space"]).endswith("hbm"))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise ValueError(f"{where} is no event of this benchmark: give the .events.jsonl that --profile wrote.") from None


def shape_of(head: dict[str, Any]) -> str | None:
    """The words that `nki_hf report --shape` takes for a launch; None for a window without a last key."""
    problem, mask = head["problem"], head["mask"]
    heads, keys, width = problem["num_heads_q"], problem["seqlen_q"], problem["head_dim"]
    sizes = (
        ("b", "batch", 1),
        ("hq", "num_heads_q", 1),
        ("hkv", "num_heads_kv", heads),
        ("sq", "seqlen_q", 0),
        ("skv", "seqlen_kv", keys),
        ("d", "head_dim", 128),
        ("dv", "head_dim_v", width),
    )
    words = [f"{short}={problem[name]}" for short, name, usual in sizes if problem[name] != usual]
    if mask.get("ahead") is not None:
        words.append("causal" if mask["ahead"] == 1 else f"ahead={mask['ahead']}")
        if mask["q_offset"] != problem["seqlen_kv"] - problem["seqlen_q"]:
            words.append(f"offset={mask['q_offset']}")
    if mask.get("window") is not None:
        if mask.get("ahead") is None:
            return None
        words.append(f"window={mask['window']}")
    words += ["bounds"] if mask.get("runtime_bounds") else []
    if mask.get("bias"):
        axes = "+".join(axis for axis in ("batch", "heads", "rows") if mask.get(f"bias_{axis}")) or "one"
        words.append(f"{'bias' if mask['bias'] == 'additive' else 'mask'}={axes}")
    if problem.get("softcap") is not None:
        words.append(f"softcap={problem['softcap']}")
    scale = problem.get("softmax_scale")
    if scale is not None and not math.isclose(scale, problem["head_dim"] ** -0.5):
        words.append(f"scale={scale}")
    words += ["sink"] if problem.get("sink") else []
    if problem.get("dtype", "bfloat16") != "bfloat16":
        words.append(f"dtype={problem['dtype']}")
    return ",".join(words)


def command(
    file: Annotated[Path, typer.Argument(help="The .events.jsonl that the benchmark's --profile wrote.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Read an event file of the benchmark: what each launch executed, by engine and kernel line.

    Times are not in it: the command that simulates them is printed. A profile of a Neuron device is opened with the commands
    that `qwen3_bench.py --dry-run --profile` prints.
    """
    launches = read_launches(file)
    if as_json:
        print(json.dumps([_plain(launch) for launch in launches], indent=1))
        return
    screen = Screen()
    for number, launch in enumerate(launches, 1):
        show(launch, f"launch {number} of {len(launches)}", screen)


def show(launch: Launch, title: str, screen: Screen) -> None:
    """Print one launch."""
    head = launch.head
    cores = f"{head['lnc']} core{'s' * (head['lnc'] > 1)}"
    screen.say(
        f"{title}: {head['kernel']} on {head['chip']}, {cores}, {launch.count:,} instructions, "
        f"HBM {_mib(launch.hbm['reads'])} MiB read, {_mib(launch.hbm['writes'])} MiB written",
        "",
    )
    opcodes = sorted(launch.opcodes.items(), key=lambda item: (item[0][0], -item[1]))
    rows = [[engine, opcode, f"{count:,}", f"{count / launch.count:.1%}"] for (engine, opcode), count in opcodes]
    screen.table(("engine", "opcode", "instructions", "share"), rows, left=(0, 1))
    screen.say("")
    lines = [[f"{os.path.basename(name)}:{line}", f"{count:,}"] for (name, line), count in launch.lines.most_common(_LINES)]
    screen.table(("kernel line", "instructions"), lines)
    screen.say("")
    shape = shape_of(head)
    if shape is None:
        screen.say("its window is one that no words of --shape describe: nki_hf report has no page of it")
    else:
        screen.say(
            "where its simulated time goes"
            + (f", all of it run by one core in place of {head['lnc']}:" if head["lnc"] > 1 else ":")
        )
        screen.line(f"nki_hf report --kernel {head['kernel']} --shape {shape} --chip {head['chip']} -o page.html")
    screen.say("")


def _plain(launch: Launch) -> dict[str, Any]:
    def by(items: Iterable[tuple[tuple[str, Any], int]], *names: str) -> list[dict[str, Any]]:
        return [{**dict(zip(names, key, strict=True)), "count": count} for key, count in items]

    return {
        **launch.head,
        "shape": shape_of(launch.head),
        "instructions": launch.count,
        "engines": dict(launch.engines),
        "opcodes": by(launch.opcodes.most_common(), "engine", "opcode"),
        "lines": by(launch.lines.most_common(), "file", "line"),
        "hbm_bytes_read": launch.hbm["reads"],
        "hbm_bytes_written": launch.hbm["writes"],
    }


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.2f}"
