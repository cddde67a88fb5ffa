"""The summary of a hostile search, property by property, in the terminal."""

import os

SEED = os.environ.get("CONDENS_HOSTILE_SEED", "0")
# The name by which a test's report carries what came of its property.
PROPERTY = "hostile search"


def write_summary(terminal):
    """Write what came of every property, also of those that other processes searched."""
    found = [
        dict(value)
        for reports in terminal.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY and report.when == "call"
    ]
    if not found:
        return
    terminal.section(f"hostile search, CONDENS_HOSTILE_SEED={SEED}")
    write = terminal.write_line
    write(f"{'cases':>6} {'answered':>9} {'refused':>8} {'failed':>7} {'CPU s':>6}  property")
    for one in sorted(found, key=lambda one: one["name"]):
        counts = f"{one['cases']:6d} {one['answered']:9d} {one['refused']:8d} {one['failed']:7d}"
        given_up = " (given up)" if one["given_up"] else ""
        write(f"{counts} {one['seconds']:6.1f}  {one['name']}{given_up}")
    cases, spent = (sum(one[what] for one in found) for what in ("cases", "seconds"))
    failed = [one for one in found if one["failed"]]
    write(f"{cases:6d} cases in {spent:.0f} s of computing; {len(failed)} properties fail")
    for one in failed:
        write("")
        write(f"{one['name']}: {one['text']}")
