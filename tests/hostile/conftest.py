"""The summary of a search, property by property."""

from hostile.search import REPORTS, SEED


def pytest_terminal_summary(terminalreporter):
    if not REPORTS:
        return
    write = terminalreporter.write_line
    terminalreporter.section(f"hostile search, CONDENS_HOSTILE_SEED={SEED}")
    write(f"{'cases':>6} {'answered':>9} {'refused':>8} {'failed':>7} {'CPU s':>6}  property")
    for one in REPORTS:
        counts = f"{one.tried:6d} {one.answered:9d} {one.refused:8d} {len(one.failures):7d}"
        write(f"{counts} {one.seconds:6.1f}  {one.name}{' (given up)' if one.given_up else ''}")
    failed = [one for one in REPORTS if one.failures]
    cases, spent = (sum(getattr(one, what) for one in REPORTS) for what in ("tried", "seconds"))
    write(f"{cases:6d} cases in {spent:.0f} s of computing; {len(failed)} properties fail")
    for one in failed:
        write("")
        write(f"{one.name}: {one.text()}")
