"""headrace replay: messages of a topic once more, into another topic or through a pipeline."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connection import connects, http_option, with_broker
from headrace.cli.declare import (
    argument,
    command,
    from_option,
    json_option,
    one_partition_option,
    option,
    parse_point,
    split_topic,
    until_option,
)
from headrace.cli.output import count_progress, print_json, print_rows
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.cli.messages.replay_jobs import ReplayJob
    from headrace.client.iggy import IggyClient

COLUMNS = ("partition", "start", "end", "messages")


@command("replay")
@argument("source", default="", metavar="[STREAM/TOPIC]", help="Read from here.")
@option("--to", default="", metavar="STREAM/TOPIC", help="Send the messages here.")
@option("--pipeline", default="", help="Have this pipeline read them again instead.")
@from_option
@until_option
@one_partition_option
@option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0,
    help="Messages per second; 0 = as fast as it goes.",
)
@option("--dry-run", is_flag=True, help="Only say what would be sent.")
@option("--resume", default="", metavar="JOB", help="Go on with a replay that was cut off.")
@http_option
@json_option
@connects
def replay(
    source: str,
    to: str,
    pipeline: str,
    start: str,
    until: str,
    partition: int,
    rate: float,
    dry_run: bool,
    resume: str,
    http: str | None,
    as_json: bool,
) -> None:
    """Send a range of a topic once more: by offsets or by time, each message once.

    Keys, headers, ids, origin timestamps and the order within partitions stay. A replay that is
    interrupted goes on with --resume and sends nothing twice.
    """
    if resume:
        _run(_load(resume, source, to, pipeline), rate, as_json=as_json)
        return
    if not source or bool(to) == bool(pipeline):
        raise click.BadParameter(
            "name the topic to read, and --to a topic or --pipeline a pipeline"
        )
    if pipeline:
        if until != "latest" or rate or partition >= 0:
            raise click.BadParameter("a pipeline reads from a point on: --from alone says which")
        _replay_pipeline(source, pipeline, start, http, dry_run=dry_run)
        return
    job = _plan(source, to, start, until, partition)
    if dry_run:
        _show(job, as_json=as_json)
        return
    job.save()
    note(f"replay {job.id}: {job.messages} messages; if it is cut off, --resume {job.id} goes on")
    _run(job, rate, as_json=as_json)


def _plan(source: str, to: str, start: str, until: str, partition: int) -> ReplayJob:
    begin, end = parse_point(start), parse_point(until)
    stream, topic = split_topic(source)
    split_topic(to)

    async def work(client: IggyClient) -> ReplayJob:
        from headrace.cli.messages.replay_jobs import ReplayJob
        from headrace.transfer.offset_ranges import describe_source, resolve_offset_ranges

        found = await describe_source(client, stream, topic)
        spans = await resolve_offset_ranges(
            client, found, start=begin, end=end, partition=None if partition < 0 else partition
        )
        id_ = client.runtime.random.uuid().hex[:12]
        return ReplayJob(id_, source, to, found.identity, tuple(spans))

    return with_broker(work)


def _load(id_: str, source: str, to: str, pipeline: str) -> ReplayJob:
    from headrace.cli.messages.replay_jobs import ReplayJob

    if source or to or pipeline:
        raise click.BadParameter("--resume needs nothing else: the job knows its topics")
    return ReplayJob.load(id_)


def _run(job: ReplayJob, rate: float, *, as_json: bool) -> None:
    async def work(client: IggyClient) -> int:
        from headrace.cli.messages.replay_jobs import carry_out

        with count_progress("replaying", job.messages) as progress:
            return await carry_out(client, job, rate=rate, on_progress=progress)

    try:
        copied = with_broker(work)
    except KeyboardInterrupt:
        note(f"interrupted: headrace replay --resume {job.id} goes on")
        raise click.exceptions.Exit(1) from None
    job.remove()
    result = {"job": job.id, "from": job.source, "to": job.target, "messages": job.messages}
    if as_json:
        print_json({**result, "sent_now": copied})
    else:
        note(f"{job.messages} messages of {job.source} are in {job.target}, {copied} sent now")


def _show(job: ReplayJob, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [{**asdict(span), "messages": span.count} for span in job.spans]
    if as_json:
        print_json(
            {"from": job.source, "to": job.target, "messages": job.messages, "partitions": rows}
        )
    else:
        print_rows(rows, COLUMNS, as_json=False)
        note(f"{job.messages} messages of {job.source} would go to {job.target}")


def _replay_pipeline(
    source: str, name: str, start: str, http: str | None, *, dry_run: bool
) -> None:
    """The controller's own change: what reads the topic starts again from the point."""
    import json
    from datetime import UTC, datetime

    from headrace.cli.control_api import pipeline_api
    from headrace.client.topic_reader import AtTime
    from headrace.errors import NotFoundError
    from headrace.pipeline.plan.logical import topic_inputs

    api = pipeline_api(http)
    topics = topic_inputs(api.get(f"/{name}/plan"))
    inputs = [port for port, topic in topics.items() if topic == source]
    if not inputs:
        read = ", ".join(topics.values()) or "none"
        raise NotFoundError(f"{name} does not read {source}; its topics: {read}")
    point = parse_point(start)
    starting = start
    if isinstance(point, AtTime):
        starting = datetime.fromtimestamp(point.timestamp_us / 1e6, UTC).isoformat()
    elif isinstance(point, int):
        stream, topic = split_topic(source)
        details = with_broker(lambda client: client.get_topic(stream, topic))
        if details is None:
            raise NotFoundError(f"there is no topic {source}")
        starting = json.dumps({str(each.id): point for each in details.partitions})
    for each in inputs:
        if not dry_run:
            api.post(f"/{name}/replay", {"topic": each, "starting": starting})
        note(f"{name} {'would read' if dry_run else 'reads'} {each} from {starting}")
