"""One self-contained HTML page of a training run: `write_report(run)` writes `run/report.html`."""

from vlrl.report.page import write_report

__all__ = ["write_report"]
