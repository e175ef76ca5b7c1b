"""`vlrl doctor`: what this machine has, what is missing or wrong, and how to mend it. Runs on a broken set-up too."""

from __future__ import annotations

from dataclasses import asdict
from json import dumps

from vlrl.doctor.finding import Finding
from vlrl.doctor.machine import devices, python, room
from vlrl.doctor.modules import modules, opencv
from vlrl.doctor.packages import conflicts, packages
from vlrl.doctor.parts import browser, decoders, embedded, renderers, robots

PARTS = (python, packages, conflicts, opencv, modules, devices, room, renderers, decoders, browser, robots, embedded)


def report() -> list[Finding]:
    """Everything that was looked at, in the order of the table."""
    return [found for part in PARTS for found in part()]


def main(json: bool = False) -> int:
    """Print the report as a table or as JSON; 1 if anything is an error, else 0."""
    findings = report()
    print(dumps([asdict(f) for f in findings], indent=2) if json else table(findings))
    return int(any(f.status == "error" for f in findings))


def table(findings: list[Finding]) -> str:
    """Aligned columns: status, name, value, and after an arrow what to do."""
    name, value = (max(len(getattr(f, column)) for f in findings) for column in ("name", "value"))
    rows = (f"{f.status:<7}  {f.name:<{name}}  {f.value:<{value}}{f'  -> {f.fix}' if f.fix else ''}" for f in findings)
    return "\n".join(row.rstrip() for row in rows)
