"""headrace top: what moves, live in the terminal, or once for programs.

A broker and the control plane are asked at an interval (`sample.py`); rates come from what changed
between two samples. `screen.py` draws them and listens to keys. Nothing is kept between two runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from headrace.cli.connection import HTTP, TARGET, connects, with_broker
from headrace.cli.declare import command, json_option, option

if TYPE_CHECKING:
    from headrace.cli.top.sample import ListPipelines, Sample
    from headrace.client.iggy import IggyClient

_PIPELINES_SECONDS = 5.0  # the screen waits for them


@command("top")
@option(
    "--interval",
    type=click.FloatRange(min=0.2, max=60),
    default=2.0,
    help="Seconds between two looks.",
)
@option("--sort", default="rate", help="Topics by rate, lag, size or name; s changes it.")
@option("--once", is_flag=True, help="Two looks, one table, no keys; also without a terminal.")
@option(
    "--count",
    type=click.IntRange(min=0),
    default=0,
    help="End after so many looks; 0 = when told to.",
)
@option(
    "--http",
    envvar="HEADRACE_HTTP",
    help=f"The control plane's HTTP port, for pipelines; none = without. [{HTTP}]",
)
@json_option
@connects
def top(
    interval: float, sort: str, once: bool, count: int, http: str | None, as_json: bool
) -> None:
    """Show rates, lag, pipelines and brokers live. Keys: q quit, p pause, s sort, r refresh."""
    from headrace.cli.top.screen import SORTS

    if sort not in SORTS:
        raise click.BadParameter(f"--sort takes {', '.join(SORTS)}")
    list_pipelines = _list_pipelines(http)

    async def work(client: IggyClient) -> None:
        if as_json:
            await _print_json(client, list_pipelines, interval, 1 if once else count)
        elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            await _print_once(client, list_pipelines, interval, sort)
        else:
            from headrace.cli.top.screen import Screen

            await Screen(sort, interval).run(client, list_pipelines, count)

    try:
        with_broker(work)
    except KeyboardInterrupt:
        raise click.exceptions.Exit from None


def _list_pipelines(http: str | None) -> ListPipelines | None:
    """What asks the control plane, with the broker's user; a token does not open it."""
    from headrace.cli.control_api import control_api

    if http == "none" or TARGET.get().token:
        return None
    api = control_api(http)

    return lambda: api.pipelines(seconds=_PIPELINES_SECONDS)


async def _two_samples(
    client: IggyClient, list_pipelines: ListPipelines | None, interval: float
) -> Sample:
    """Rates need two."""
    import asyncio

    from headrace.cli.top.sample import take_sample

    first = await take_sample(client, None, None)
    await asyncio.sleep(min(interval, 1.0))
    return await take_sample(client, list_pipelines, first)


async def _print_once(
    client: IggyClient, list_pipelines: ListPipelines | None, interval: float, sort: str
) -> None:
    from rich.console import Console

    from headrace.cli.top.screen import draw

    found = await _two_samples(client, list_pipelines, interval)
    Console().print(draw(found, sort=sort, paused=False, height=200))


async def _print_json(
    client: IggyClient, list_pipelines: ListPipelines | None, interval: float, count: int
) -> None:
    """One object for a single sample, else one line for each."""
    import asyncio
    import json

    from headrace.cli.top.sample import take_sample

    if count == 1:
        found = await _two_samples(client, list_pipelines, interval)
        print(json.dumps(found.to_json(), indent=2, default=str), flush=True)
        return
    before: Sample | None = None
    samples = 0
    while not count or samples < count:
        if samples:
            await asyncio.sleep(interval)
        before = await take_sample(client, list_pipelines, before)
        print(json.dumps(before.to_json(), default=str), flush=True)
        samples += 1
