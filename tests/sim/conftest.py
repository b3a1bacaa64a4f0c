"""Seeds and simulated hours at the end of the test run."""

from __future__ import annotations

import pytest

from tests.sim import survey


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if survey.SUMMARY:
        terminalreporter.section("simulator")
        for line in survey.SUMMARY:
            terminalreporter.write_line(line)
