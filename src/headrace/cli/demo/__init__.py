"""headrace demo: the whole system on this machine, with a kill in the middle and a check.

`show.py` runs the steps and ends by process id whatever it started; `producer.py` sends orders with
a real Iggy client, the pipeline in `pipeline` computes on them, and `check.py` holds the result
against a plain computation. Begin to read in `show.py`.
"""

from __future__ import annotations

import click

from headrace.cli.declare import command, option


@command("demo")
@option("--events", type=click.IntRange(min=1000), default=30_000, help="Orders to send.")
@option("--rate", type=click.IntRange(min=100), default=1_500, help="Orders per second.")
@option("--keep", is_flag=True, envvar="DEMO_KEEP", help="Leave everything running.")
@option("--data-dir", default="", help="Where to keep the data; default: a new folder.")
def demo(events: int, rate: int, keep: bool, data_dir: str) -> None:
    """Start everything, send orders with a real Iggy client, run a Spark pipeline on them, kill it
    half-way, and check the result against a plain computation. Exit 0 only if the check held."""
    from headrace.cli.demo.show import Show

    if not Show(events=events, rate=rate, keep=keep, data_dir=data_dir).run():
        raise click.exceptions.Exit(1)
