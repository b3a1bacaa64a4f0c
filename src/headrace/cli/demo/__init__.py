"""headrace demo: the whole system on this machine, with a kill in the middle and a check."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    events: Annotated[int, typer.Option("--events", min=1000, help="Orders to send.")] = 30_000,
    rate: Annotated[int, typer.Option("--rate", min=100, help="Orders per second.")] = 1_500,
    keep: Annotated[
        bool, typer.Option("--keep", envvar="DEMO_KEEP", help="Leave everything running.")
    ] = False,
    data_dir: Annotated[
        str, typer.Option("--data-dir", help="Where to keep the data; default: a new folder.")
    ] = "",
) -> None:
    """Start everything, send orders with a real Iggy client, run a Spark pipeline on them, kill it
    half-way, and check the result against a plain computation. Exit 0 only if the check held."""
    from headrace.cli.demo.show import Show

    if not Show(events=events, rate=rate, keep=keep, data_dir=data_dir).run():
        raise typer.Exit(1)
