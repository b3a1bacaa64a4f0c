"""Dead letters of a pipeline: which operators have some, what they are, sending them again.

Everything is asked of the broker as the user, who sees and sends what the broker lets them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta
from starlette.requests import Request

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError, UnauthorizedError
from headrace.pipeline.controller.views import ApplicationView
from headrace.pipeline.plan.logical import letter_topics
from headrace.transfer.dead_letters import Letter, LetterSummary, list_letters, summarize
from headrace.transfer.redriving import Redriving
from headrace.web.pipeline_api.control import PIPELINE
from headrace.web.server.endpoints import Endpoint, NumberParameter, TextParameter
from headrace.web.server.logins import Credentials

LETTERS_MAX = 500
PAYLOAD_CHARACTERS_MAX = 8_192
LETTERS = f"{PIPELINE}/dead-letters"
_TOPIC = TextParameter("topic", "Which, where the operator has several.")
_COUNT = NumberParameter(
    "count", "At most so many of each partition.", default=100, most=LETTERS_MAX, least=1
)
_ALL = TextParameter("all", "`true`: also those that were sent again.")

Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class LetterBox(msgspec.Struct, frozen=True, kw_only=True):
    """A dead-letter topic of an operator."""

    operator: str
    topic: str
    letters: int
    waiting: int
    newest_ms: int | None


class LetterBoxes(msgspec.Struct, frozen=True, kw_only=True):
    operators: list[LetterBox]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    offset: int
    time_ms: int
    reason: str
    operator: str
    window: str
    record: str  # where the message stood
    origin: str  # where it first stood, if it was sent again before
    key: str | None
    payload: str  # text, or hexadecimal
    text: bool
    truncated: bool
    redrives: int
    redriven: bool


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    letters: list[DeadLetter]


class Redrive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`offsets` by partition; none are all that wait."""

    offsets: dict[Offset, list[Offset]] = {}
    again: bool = False  # also those that were sent before


class RedriveDone(msgspec.Struct, frozen=True, kw_only=True):
    sent: dict[str, int]  # by topic
    known: int  # were sent before
    homeless: int  # do not say where they belong


_EVERYTHING = Redrive()


class ShownPipelines(Protocol):
    def glance(self, name: str) -> ApplicationView: ...


AsUser = Callable[[Credentials], AbstractAsyncContextManager[IggyClient]]


def endpoints(pipelines: ShownPipelines, as_user: AsUser) -> list[Endpoint]:
    def topics(request: Request) -> dict[str, tuple[str, ...]]:
        return letter_topics(pipelines.glance(request.path_params["name"]).plan)

    def topic(request: Request) -> tuple[str, str]:
        """The operator's; `topic` says which, where it has several."""
        operator = request.path_params["operator"]
        known = topics(request).get(operator, ())
        wanted = _TOPIC.read(request, known[0] if known else "")
        if wanted not in known:
            raise NotFoundError("this operator has no such dead letters", operator=operator)
        stream, _, name = wanted.partition("/")
        return stream, name

    async def boxes(request: Request) -> LetterBoxes:
        found = []
        async with as_user(request.state.credentials) as client:
            for operator, names in topics(request).items():
                for one in names:
                    with suppress(UnauthorizedError):  # theirs are the others
                        known = await summarize(client, *one.split("/", 1))
                        if known is not None:
                            found.append(_box(operator, known))
        return LetterBoxes(operators=found)

    async def letters(request: Request) -> DeadLetters:
        stream, name = topic(request)
        count, waiting = _COUNT.read(request), _ALL.read(request) != "true"
        async with as_user(request.state.credentials) as client:
            found = await list_letters(
                client, stream, name, waiting=waiting, newest=True, count=count
            )
        return DeadLetters(topic=f"{stream}/{name}", letters=[_letter(one) for one in found[::-1]])

    async def redrive(request: Request, wanted: Redrive = _EVERYTHING) -> RedriveDone:
        stream, name = topic(request)
        async with as_user(request.state.credentials) as client:
            run = Redriving(client, stream, name, again=wanted.again, skip_homeless=True)
            done = await (run.chosen(wanted.offsets) if wanted.offsets else run.all())
        return RedriveDone(sent=done.sent, known=done.known, homeless=done.homeless)

    former = "/api/pipelines/{name}/dead-letters"
    return [
        Endpoint("GET", LETTERS, boxes, "Dead-letter topics of its operators.", former_path=former),
        Endpoint(
            "GET",
            f"{LETTERS}/{{operator}}",
            letters,
            "An operator's dead letters, newest first.",
            query=(_TOPIC, _COUNT, _ALL),
            former_path=f"{former}/{{operator}}",
        ),
        Endpoint(
            "POST",
            f"{LETTERS}/{{operator}}/redrive",
            redrive,
            "Send dead letters again, to where they came from.",
            query=(_TOPIC,),
            status=202,
            manage=True,
            first=topic,
            former_path=f"{former}/{{operator}}/redrive",
        ),
    ]


def _box(operator: str, known: LetterSummary) -> LetterBox:
    return LetterBox(
        operator=operator,
        topic=f"{known.stream}/{known.topic}",
        letters=known.letters,
        waiting=known.waiting,
        newest_ms=known.newest_us // 1000 or None,
    )


def _letter(one: Letter) -> DeadLetter:
    try:
        payload, text = one.payload.decode(), True
    except UnicodeDecodeError:
        payload, text = one.payload[: PAYLOAD_CHARACTERS_MAX // 2].hex(), False
    return DeadLetter(
        partition=one.partition,
        offset=one.offset,
        time_ms=one.timestamp_us // 1000,
        reason=one.reason,
        operator=one.operator,
        window=one.window,
        record=str(one.place or ""),
        origin=str(one.origin or "") if one.origin != one.place else "",
        key=None if one.key is None else one.key.decode(errors="replace"),
        payload=payload[:PAYLOAD_CHARACTERS_MAX],
        text=text,
        truncated=len(one.payload) > (PAYLOAD_CHARACTERS_MAX if text else 4_096),
        redrives=one.redrives,
        redriven=one.redriven,
    )
