"""headrace dead-letters summary|list|show|redrive"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connection import connects, http_option, with_broker
from headrace.cli.declare import Group, argument, json_option, option, split_topic
from headrace.cli.output import count_progress, print_fields, print_json, print_rows
from headrace.cli.topics.topics import details_of
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.transfer.dead_letters import Letter, LetterSummary
    from headrace.transfer.redriving import Redriven

app = Group(
    "dead-letters",
    help="Dead letters: rows that a pipeline set aside, and sending them on their way again.",
)

name_argument = argument(
    "name", metavar="PIPELINE", help="A pipeline, or a dead-letter topic itself: STREAM/TOPIC."
)
operator_argument = argument(
    "operator", default="", metavar="[OPERATOR]", help="Only its letters; all if empty."
)
partition_option = option(
    "--partition", type=click.IntRange(min=0), default=0, help="Of the dead-letter topic."
)
SUMMARY = ("operator", "topic", "letters", "waiting", "newest")
COLUMNS = ("operator", "partition", "offset", "at", "reason", "origin")
_TEXT_MAX = 60


@app.command("summary")
@name_argument
@operator_argument
@http_option
@json_option
@connects
def summary(name: str, operator: str, http: str | None, as_json: bool) -> None:
    """How many letters each operator has, and how many of them wait."""
    topics = _topics(name, operator, http)

    async def work(client: IggyClient) -> list[dict[str, Any]]:
        from headrace.transfer.dead_letters import summarize

        await _check(client, name)
        rows = []
        for stream, topic, owner in topics:
            found = await summarize(client, stream, topic)
            if found is not None:
                rows.append(_summary_row(found, owner))
        return rows

    print_rows(with_broker(work), SUMMARY, as_json=as_json)


@app.command("list")
@name_argument
@operator_argument
@option("--all", "every", is_flag=True, help="Those that were re-driven too.")
@option("--newest", is_flag=True, help="The last ones, not the first.")
@option("--count", "-n", type=click.IntRange(min=1), default=50, help="Of each partition.")
@http_option
@json_option
@connects
def list_letters(
    name: str, operator: str, every: bool, newest: bool, count: int, http: str | None, as_json: bool
) -> None:
    """List the letters that wait: why each was set aside, and where it came from."""
    topics = _topics(name, operator, http)

    async def work(client: IggyClient) -> list[dict[str, Any]]:
        from headrace.transfer.dead_letters import list_letters

        await _check(client, name)
        return [
            to_json(letter, f"{stream}/{topic}")
            for stream, topic, _ in topics
            for letter in await list_letters(
                client, stream, topic, waiting=not every, newest=newest, count=count
            )
        ]

    rows = with_broker(work)
    if as_json:
        print_json(rows)
    else:
        print_rows(map(_shortened, rows), COLUMNS, as_json=False)


@app.command("show")
@name_argument
@operator_argument
@option("--offset", type=click.IntRange(min=0), default=0, help="As `list` prints it.")
@partition_option
@http_option
@json_option
@connects
def show(
    name: str, operator: str, offset: int, partition: int, http: str | None, as_json: bool
) -> None:
    """Show one letter whole: the reason, and the original record."""
    stream, topic = _one_topic(name, operator, http)

    async def work(client: IggyClient) -> dict[str, Any]:
        from headrace.transfer.dead_letters import get_letter

        letter = await get_letter(client, stream, topic, partition=partition, offset=offset)
        return to_json(letter, f"{stream}/{topic}")

    found = with_broker(work)
    if not as_json:
        found["headers"] = json.dumps(found["headers"])
    print_fields(found, as_json=as_json)


@app.command("redrive")
@name_argument
@operator_argument
@option("--offset", "offsets", type=int, multiple=True, help="This letter; repeatable.")
@partition_option
@option("--all", "every", is_flag=True, help="Every letter that waits.")
@option("--to", default="", metavar="STREAM/TOPIC", help="Not where they came from, but here.")
@option("--again", is_flag=True, help="Also those that were re-driven before.")
@option(
    "--skip-homeless", is_flag=True, help="Pass by letters that do not say where they came from."
)
@option("--dry-run", is_flag=True, help="Send nothing; say what would.")
@http_option
@json_option
@connects
def redrive(
    name: str,
    operator: str,
    offsets: tuple[int, ...],
    partition: int,
    every: bool,
    to: str,
    again: bool,
    skip_homeless: bool,
    dry_run: bool,
    http: str | None,
    as_json: bool,
) -> None:
    """Send letters back to the topics they came from, each once, however often this is run."""
    if bool(offsets) == every:
        raise click.BadParameter("choose letters with --offset, or all that wait with --all")
    target = split_topic(to) if to else None
    topics = _topics(name, operator, http)
    if offsets and len(topics) != 1:
        topics = [(*_one_topic(name, operator, http), operator)]

    async def work(client: IggyClient) -> Redriven:
        from headrace.transfer.dead_letters import summarize
        from headrace.transfer.redriving import Redriven, Redriving

        total = Redriven()
        for stream, topic, _ in topics:
            found = await summarize(client, stream, topic)
            if found is None:
                continue
            with count_progress(
                "re-driving", found.letters if again else found.waiting
            ) as on_progress:
                redriving = Redriving(
                    client, stream, topic, to=target, again=again, skip_homeless=skip_homeless,
                    dry_run=dry_run, on_progress=on_progress,
                )  # fmt: skip
                if offsets:
                    done = await redriving.chosen({partition: set(offsets)})
                else:
                    done = await redriving.all()
            total.add(done)
        return total

    done = with_broker(work)
    fields = {
        "redriven": done.letters, "topics": done.sent, "known": done.known,
        "homeless": done.homeless, "dry_run": dry_run,
    }  # fmt: skip
    if as_json:
        print_json(fields)
        return
    verb = "would go" if dry_run else "went"
    for where, number in sorted(done.sent.items()):
        print(f"{number} letters {verb} to {where}")
    note(f"{done.letters} re-driven, {done.known} were before, {done.homeless} without a home")


async def _check(client: IggyClient, name: str) -> None:
    """A topic that is named must be there; one of a pipeline's appears with its first letter."""
    if "/" in name:
        await details_of(client, *split_topic(name))


# --- which topics ---------------------------------------------------------------------------------


def _topics(name: str, operator: str, http: str | None) -> list[tuple[str, str, str]]:
    """(stream, topic, operator) of every topic that may hold letters."""
    if "/" in name:
        return [(*split_topic(name), operator)]
    from headrace.cli.control_api import pipeline_api
    from headrace.errors import NotFoundError
    from headrace.pipeline.plan.logical import letter_topics

    plan = pipeline_api(http).get(f"/{name}/plan")
    found = letter_topics(plan)
    if operator and operator not in found:
        raise NotFoundError(f"{name} has no operator {operator}; it has {', '.join(found)}")
    return [
        (*split_topic(topic), owner)
        for owner, topics in found.items()
        if operator in ("", owner)
        for topic in topics
    ]


def _one_topic(name: str, operator: str, http: str | None) -> tuple[str, str]:
    """The one that is there: an offset means nothing across several."""
    topics = _topics(name, operator, http)
    if len(topics) == 1:
        return topics[0][:2]

    async def existing(client: IggyClient) -> list[tuple[str, str]]:
        return [
            (stream, topic)
            for stream, topic, _ in topics
            if await client.get_topic(stream, topic) is not None
        ]

    found = with_broker(existing)
    if len(found) != 1:
        names = ", ".join("/".join(each) for each in found) or "none"
        raise click.BadParameter(f"name the operator, or one topic; there are {names}")
    return found[0]


# --- letters as people and programs read them -----------------------------------------------------


def to_json(letter: Letter, topic: str) -> dict[str, Any]:
    value: dict[str, Any] = {
        "topic": topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "at": _time(letter.timestamp_us),
        "operator": letter.operator,
        "reason": letter.reason,
        "window": letter.window,
        "place": None if letter.place is None else str(letter.place),
        "origin": None if letter.origin is None else str(letter.origin),
        "redrives": letter.redrives,
        "redriven": letter.redriven,
        "key": None if letter.key is None else letter.key.decode(errors="replace"),
        "headers": {
            one.key.decode(errors="replace"): one.value.decode(errors="replace")
            for one in letter.headers
        },
    }
    try:
        value["payload"] = letter.payload.decode()
    except UnicodeDecodeError:
        value["payload_base64"] = base64.b64encode(letter.payload).decode()
    return value


def _summary_row(found: LetterSummary, operator: str) -> dict[str, Any]:
    return {
        "operator": operator,
        "topic": f"{found.stream}/{found.topic}",
        "letters": found.letters,
        "waiting": found.waiting,
        "newest": _time(found.newest_us) if found.newest_us else None,
    }


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if not isinstance(value, str) or len(value) <= _TEXT_MAX
        else f"{value[: _TEXT_MAX - 1]}…"
        for name, value in row.items()
    }  # fmt: skip


def _time(timestamp_us: int) -> str:
    return datetime.fromtimestamp(timestamp_us / 1e6, UTC).isoformat(timespec="milliseconds")
