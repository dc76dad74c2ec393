"""The command line: verbs come from tools/, wrong use exits with 2."""

import json

from typer.testing import CliRunner

from nki_hf.cli import app


def test_chip_prints_numbers_with_source():
    done = CliRunner().invoke(app, ["chip", "trn2", "--json"])
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["sbuf_partition_bytes"]["value"] == 224 * 1024
    assert all(row["unit"] and row["source"] and row["confidence"] for row in rows.values())


def test_unknown_chip_lists_the_known_ones():
    done = CliRunner().invoke(app, ["chip", "trn9"])
    assert done.exit_code == 2
    assert "trn1, trn2, trn3" in done.output
