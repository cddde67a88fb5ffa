"""Measure condens beside its peers; write results.json and results.md.

    python benchmarks/speed/run.py benchmarks/speed/results [--quick] [--only loss,memory]

--only measures some of the tables and keeps the others that the directory has.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import machine
import report
import torch
from tables import TABLES, Effort


def tables(text: str) -> list[str]:
    """Read the value of --only."""
    names = text.split(",")
    for name in names:
        if name not in TABLES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(TABLES)}")
    return names


def stored(path: Path, described: dict[str, str]) -> dict[str, Any]:
    """Return the results that are there, if they were measured under the same conditions."""
    if not path.exists():
        return {}
    results: dict[str, Any] = json.loads(path.read_text())
    if results.get("machine") != described:
        sys.exit(
            f"{path} was measured on another machine, or with other versions or settings. "
            "Measure all tables, without --only, or choose another directory."
        )
    return results


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--quick", action="store_true", help="few sizes, under two minutes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", type=tables, help=f"some of {','.join(TABLES)}")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    described = machine.describe(quick=options.quick)
    path = options.directory / "results.json"
    results = stored(path, described) if options.only else {}
    results["machine"] = described
    options.directory.mkdir(parents=True, exist_ok=True)
    for name in options.only or TABLES:
        start = time.perf_counter()
        results[name] = TABLES[name](Effort(options.quick, options.threads))
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        path.write_text(json.dumps(results, indent=1) + "\n")
    text = report.write(results)
    path.with_name("results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
