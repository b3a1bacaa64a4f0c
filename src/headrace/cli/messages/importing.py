"""headrace import jsonl|iggy|kafka"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connection import PASSWORD, USERNAME, connects, with_broker
from headrace.cli.declare import Group, argument, json_option, option, split_topic
from headrace.cli.output import byte_progress, count_progress, print_json
from headrace.cli.server_names import topic_argument
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.cli.messages.import_sources import ImportFigures
    from headrace.client.iggy import IggyClient

app = Group(
    "import",
    help="Moving in: topics of others, and files. Run again, an import goes on where it was.",
)


rate_option = option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0,
    help="Messages per second; 0 = as fast as it goes.",
)
by_key_option = option(
    "--by-key",
    is_flag=True,
    help="Put keys where clients of this server do, not in partitions as they were.",
)
accept_loss_option = option(
    "--accept-loss", is_flag=True, help="Go on where the source has lost messages meanwhile."
)


@app.command("jsonl")
@topic_argument
@argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@option(
    "--partitions", type=click.IntRange(min=1, max=1000), default=1, help="Of a topic that is made."
)
@by_key_option
@rate_option
@json_option
@connects
def jsonl(name: str, file: Path, partitions: int, by_key: bool, rate: float, as_json: bool) -> None:
    """Import a file of JSON lines, as `headrace export` and `consume --json` write them.

    A line is an object with payload or payload_base64; key, headers, id, partition and
    origin_timestamp_us are kept. A file that has grown is imported from where it was.
    """
    target_name = split_topic(name)

    async def work(client: IggyClient) -> ImportFigures:
        from headrace.cli.messages.import_sources import ImportTarget, import_lines

        target = await ImportTarget.prepare(client, target_name, partitions=partitions)
        with _byte_progress(file) as progress:
            return await import_lines(target, file, rate=rate, by_key=by_key, on_progress=progress)

    _tell({name: _run(work)}, as_json=as_json)


@app.command("iggy")
@argument("source", metavar="STREAM[/TOPIC]", help="There; without a topic, all of them.")
@option("--source-address", required=True, metavar="HOST:PORT", help="Of the other server.")
@option("--to", default="", metavar="STREAM[/TOPIC]", help="Here; the same if empty.")
@option("--source-username", default=USERNAME)
@option(
    "--source-password", default=PASSWORD, envvar="HEADRACE_SOURCE_PASSWORD", show_default=False
)
@option("--source-token", default="", envvar="HEADRACE_SOURCE_TOKEN")
@option("--source-tls", is_flag=True, help="Connect to it over TLS.")
@option(
    "--source-dialect",
    type=click.Choice(["B2", "C"]),
    default="B2",
    help="C for apache-iggy 0.9.0 and later.",
)
@by_key_option
@accept_loss_option
@rate_option
@json_option
@connects
def iggy(
    source: str,
    source_address: str,
    to: str,
    source_username: str,
    source_password: str,
    source_token: str,
    source_tls: bool,
    source_dialect: str,
    by_key: bool,
    accept_loss: bool,
    rate: float,
    as_json: bool,
) -> None:
    """Import topics from an Iggy server, or from another Headrace."""
    from headrace.cli.messages.import_sources import IggySource
    from headrace.client.url import TlsOptions

    tls = TlsOptions(source_tls, "", "", False).client()
    server = IggySource(
        source_address, source_username, source_password, source_token, source_dialect, tls
    )

    async def work(client: IggyClient) -> dict[str, ImportFigures]:
        from headrace.cli.messages.import_sources import ImportTarget, import_topic
        from headrace.transfer.offset_ranges import describe_source

        done = {}
        async with await server.connect(client.runtime) as there:
            for from_topic, to_topic in await _pairs(there, source, to):
                described = await describe_source(there, *from_topic)
                target = await ImportTarget.prepare(
                    client, to_topic, partitions=max(1, len(described.partitions))
                )
                total = sum(span.count for span in described.partitions)
                with count_progress("/".join(to_topic), total) as progress:
                    done["/".join(to_topic)] = await import_topic(
                        target, there, described, source_address, rate=rate, by_key=by_key,
                        accept_loss=accept_loss, on_progress=progress,
                    )  # fmt: skip
        return done

    _tell(_run(work), as_json=as_json)


@app.command("kafka")
@argument("topic", metavar="KAFKA-TOPIC")
@option("--to", required=True, metavar="STREAM/TOPIC", help="Where it goes.")
@option("--bootstrap", default="localhost:9092", metavar="HOST:PORT,...", help="Brokers of Kafka.")
@option("--config", multiple=True, metavar="NAME=VALUE", help="Of librdkafka; repeatable.")
@by_key_option
@accept_loss_option
@rate_option
@json_option
@connects
def kafka(
    topic: str,
    to: str,
    bootstrap: str,
    config: tuple[str, ...],
    by_key: bool,
    accept_loss: bool,
    rate: float,
    as_json: bool,
) -> None:
    """Import a topic from Kafka: what it holds now; run again, what came since."""
    from headrace.cli.messages.import_kafka import KafkaSource, import_topic
    from headrace.cli.messages.records import parse_headers

    target_name = split_topic(to)
    source = KafkaSource(bootstrap, topic, parse_headers(config))

    async def work(client: IggyClient) -> ImportFigures:
        from headrace.cli.messages.import_sources import ImportTarget

        try:
            cluster, spans = await source.describe()
            target = await ImportTarget.prepare(client, target_name, partitions=len(spans))
            with count_progress("importing", sum(span.count for span in spans)) as progress:
                return await import_topic(
                    target, source, cluster, spans, rate=rate, by_key=by_key,
                    accept_loss=accept_loss, on_progress=progress,
                )  # fmt: skip
        finally:
            await source.close()

    _tell({to: _run(work)}, as_json=as_json)


async def _pairs(
    client: IggyClient, source: str, to: str
) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Which topics become which."""
    from headrace.errors import NotFoundError

    if "/" in source:
        pair = split_topic(source)
        there = split_topic(to) if "/" in to else (to or pair[0], pair[1])
        return [(pair, there)]
    if "/" in to:
        raise click.BadParameter("a whole stream goes into a stream: --to STREAM")
    if await client.get_stream(source) is None:
        raise NotFoundError(f"the source has no stream {source}")
    topics = sorted(topic.name for topic in await client.get_topics(source))
    return [((source, topic), (to or source, topic)) for topic in topics]


def _run(work: Any) -> Any:
    try:
        return with_broker(work)
    except KeyboardInterrupt:
        note("interrupted: the same command goes on where it was")
        raise click.exceptions.Exit(1) from None


def _byte_progress(file: Path) -> Any:
    import sys
    from contextlib import nullcontext

    if not sys.stderr.isatty():
        return nullcontext(lambda _: None)
    return byte_progress("importing", file.stat().st_size)


def _tell(done: dict[str, ImportFigures], *, as_json: bool) -> None:
    if as_json:
        print_json({name: asdict(each) for name, each in done.items()})
        return
    for name, each in done.items():
        note(f"{each.messages} messages imported into {name}")
        for what, count in each.remarks.items():
            note(f"  {count} {what}")
