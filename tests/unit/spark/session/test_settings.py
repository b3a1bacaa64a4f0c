"""One table of settings: what sessions start with and what `headrace spark-conf` prints."""

from __future__ import annotations

import json
import shlex
import subprocess

from click.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import ConfigError
from headrace.spark.session import session


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["spark-conf", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_form_says_what_sessions_start_with() -> None:
    assert len(session.RECOMMENDED) == len(session.SETTINGS), "each name stands there once"
    assert json.loads(printed("--json")) == session.RECOMMENDED

    lines = [line for line in printed().splitlines() if not line.startswith("#")]
    assert dict(line.split(" ", 1) for line in lines) == session.RECOMMENDED

    words = printed("--arguments").split()  # as the shell splits `$(headrace spark-conf ...)`
    assert words[::2] == ["--conf"] * len(session.SETTINGS)
    assert dict(word.split("=", 1) for word in words[1::2]) == session.RECOMMENDED
    assert shlex.split(printed("--arguments")) == words


def test_the_settings_of_the_measurements_are_among_them() -> None:
    for name, value in {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    }.items():
        assert session.RECOMMENDED[name] == value
    manager = session.RECOMMENDED["spark.sql.streaming.checkpointFileManagerClass"]
    assert manager.endswith(".FileSystemBasedCheckpointFileManager")


def test_the_environment_survives_a_shell() -> None:
    exports = printed("--environment")
    shown = subprocess.run(
        ["sh", "-c", f'{exports}\nprintf "%s\\n" "$JAVA_HOME" "$PYSPARK_PYTHON"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    expected = session.environment()
    assert shown == [expected["JAVA_HOME"], expected["PYSPARK_PYTHON"]]
    assert json.loads(printed("--environment", "--json")) == expected


def test_two_forms_at_once_are_refused() -> None:
    result = CliRunner().invoke(app, ["spark-conf", "--arguments", "--environment"])
    assert isinstance(result.exception, ConfigError)
