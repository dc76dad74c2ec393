"""Put the plan constants of flash_const_max into its source, as `nki_hf tune flash_const_max --table` prints them.

python tools/tune_const_max.py [--write]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nki_hf.tools.searching.workers import Workers, processes_of
from nki_hf.tools.tuning.plan_table import made, replaced

TABLE = Path(__file__).resolve().parents[1] / "nki_hf" / "kernels" / "flash_const_max" / "tuning.py"


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it into tuning.py")
    arguments = parser.parse_args()
    with Workers(processes_of(0)) as workers:
        table = made("flash_const_max", workers, None)
    if arguments.write:
        TABLE.write_text(replaced(TABLE.read_text(), table))
    else:
        print(table)


if __name__ == "__main__":
    main()
