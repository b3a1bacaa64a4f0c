"""headrace control-log: what a data directory's control state lost, and going on without it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.declare import Group, json_option, option
from headrace.cli.output import print_json, print_rows
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.sbp_client.state_replay import Condition

app = Group(
    "control-log", help="What damage cost the control state: users, topics, offsets, pipelines."
)

DATA_DIR = "headrace-data"
data_dir_option = option("--data-dir", default=DATA_DIR, help="Of `headrace up`, which is stopped.")
_COLUMNS = ("log", "holds", "records", "mended", "lost")


@app.command()
@data_dir_option
@json_option
def check(data_dir: str, as_json: bool) -> None:
    """Read the control logs of a stopped server and say what of them is lost. Changes nothing.

    Exit 0 only if nothing is. What is `mended` cannot be read either, but stands there twice.
    """
    if _tell(_look(data_dir, accept=False), as_json=as_json):
        raise click.exceptions.Exit(1)


@app.command()
@data_dir_option
@option("--dry-run", is_flag=True, help="Only say what would be given up.")
@json_option
def salvage(data_dir: str, dry_run: bool, as_json: bool) -> None:
    """Let a server start again without what its control logs lost, after saying what that is.

    Events behind a loss that no longer fit, such as a change of a topic whose creation is lost,
    are left out at the next start and named in its log. Take a copy of the data directory first.
    """
    lost = _tell(_look(data_dir, accept=not dry_run), as_json=as_json)
    if lost and not dry_run:
        note("accepted; `headrace up` starts without them and names in its log what no longer fits")


def _look(data_dir: str, *, accept: bool) -> Sequence[Condition]:
    from headrace.errors import ConfigError
    from headrace.process.data_plane import open_control_logs
    from headrace.process.node_folders import NODE
    from headrace.process.startup.settings import load_settings
    from headrace.runtime.system import run, system_runtime

    if not (Path(data_dir) / "placement").is_dir() or not (Path(data_dir) / NODE).is_dir():
        raise ConfigError(f"{data_dir} is not a data directory of `headrace up`; say --data-dir")

    async def look() -> Sequence[Condition]:
        settings = load_settings("", {"data_dir": data_dir})
        async with open_control_logs(system_runtime(), settings) as logs:
            found = await logs.conditions()
            if accept:
                await logs.accept([each for each in found if each.examined.missing])
            return found

    return run(look())


def _tell(found: Sequence[Condition], *, as_json: bool) -> int:
    """Returns how many stretches are lost."""
    lost = [(each, span) for each in found for span in each.examined.missing]
    rows = [_row(each) for each in found]
    if as_json:
        spans = [
            {"log": each.name, "start": span.start, "end": span.end,
             "written_after_ms": each.times[span][0], "written_before_ms": each.times[span][1]}
            for each, span in lost
        ]  # fmt: skip
        print_json({"logs": rows, "lost": spans})
        return len(lost)
    print_rows(rows, _COLUMNS, as_json=False)
    for each, span in lost:
        after, before = each.times[span]
        print(
            f"lost  {each.name}: records {span.start} to {span.end - 1},"
            f" written between {_time(after)} and {_time(before)}"
        )
        if each.examined.snapshot is None and each.examined.start:
            print(f"lost  {each.name}: its snapshot, with everything older than that")
    return len(lost)


def _row(condition: Condition) -> dict[str, Any]:
    from headrace.process.data_plane import CONTENTS

    examined = condition.examined
    return {
        "log": condition.name,
        "holds": CONTENTS[condition.name],
        "records": condition.end - examined.start,
        "mended": sum(span.end - span.start for span in examined.held_by_copy),
        "lost": sum(span.end - span.start for span in examined.missing),
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%F %T UTC") if ms else "(unknown)"
