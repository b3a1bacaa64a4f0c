"""What `/api/v1` takes and gives, for the OpenAPI document.

What the paths of the pipelines' pages take and give, for the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.web.broker_api import types as b
from headrace.web.broker_api.messages import MESSAGES_MAX, TOPIC
from headrace.web.broker_api.overview import TOPICS_MAX
from headrace.web.diagnosis.types import Situation
from headrace.web.pipeline_api import api as p
from headrace.web.pipeline_api import letters as d

_STREAM = "/api/v1/streams/{stream}"


@dataclass(frozen=True, slots=True)
class Detail:
    summary: str
    answer: type[msgspec.Struct] | None = None  # None: some object, or text
    body: type[msgspec.Struct] | None = None
    query: Mapping[str, str | Parameter] | None = None
    text: bool = False
    media_type: str = "text/plain"  # of text
    nothing: bool = False  # an answer without a body, 204


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of a query, with what it may be."""

    description: str
    schema: Mapping[str, Any]
    required: bool = False


def _number(description: str, most: int = 2**63 - 1, least: int = 0) -> Parameter:
    return Parameter(description, {"type": "integer", "minimum": least, "maximum": most})


BROKER_DETAILS: Mapping[tuple[str, str], Detail] = {
    ("POST", "/api/v1/session"): Detail(
        "Log in: sets the cookie of a session. Needs the header X-Headrace-Page.",
        b.SessionInfo,
        b.SessionStart,
    ),
    ("GET", "/api/v1/session"): Detail(
        "Who is logged in and what they may do; nothing (204) for nobody.", b.SessionInfo
    ),
    ("DELETE", "/api/v1/session"): Detail(
        "Log out. Needs the header X-Headrace-Page.", nothing=True
    ),
    ("GET", "/api/v1/events/stream"): Detail(
        "Server-sent events: the newest value of each topic of events, when it changes.",
        text=True,
        media_type="text/event-stream",
        query={
            "topics": Parameter(
                "overview, topics, streams, groups, cluster, alerts, problems, pipeline/<name>,"
                " with commas between.",
                {"type": "string", "pattern": "^[a-z]+(,[a-z]+){0,31}$"},
                required=True,
            )
        },
    ),
    ("GET", "/api/v1/overview"): Detail("The server, totals and rates.", b.Overview),
    ("GET", "/api/v1/streams"): Detail("Streams that the user may see.", b.StreamRows),
    ("POST", "/api/v1/streams"): Detail("Create a stream.", b.Done, b.CreateStream),
    ("DELETE", _STREAM): Detail("Delete a stream and all its topics.", b.Done),
    ("POST", f"{_STREAM}/purge"): Detail("Delete all messages of a stream.", b.Done),
    ("POST", f"{_STREAM}/topics"): Detail("Create a topic.", b.Done, b.CreateTopic),
    ("GET", "/api/v1/topics"): Detail(
        "Topics that the user may see.",
        b.TopicRows,
        query={
            "search": "Only those with this in `stream/topic`.",
            "offset": _number("How many to leave out."),
            "limit": _number("At most so many.", TOPICS_MAX),
        },
    ),
    ("GET", TOPIC): Detail("One topic, its partitions, its rates over time.", b.TopicInfo),
    ("PUT", TOPIC): Detail("Change a topic; 0 takes a limit away.", b.Done, b.UpdateTopic),
    ("DELETE", TOPIC): Detail("Delete a topic.", b.Done),
    ("POST", f"{TOPIC}/purge"): Detail("Delete all messages of a topic.", b.Done),
    ("POST", f"{TOPIC}/partitions"): Detail("Add partitions.", b.Done, b.AddPartitions),
    ("GET", f"{TOPIC}/ranges"): Detail("Where a topic lies: ranges and replicas.", b.RangeRows),
    ("GET", f"{TOPIC}/messages"): Detail(
        "Messages from an offset or a time on, or the newest.",
        b.Messages,
        query={
            "partition": _number("Of this partition.", 2**32 - 1),
            "offset": _number("From this offset on."),
            "time_ms": _number("From this time on; before `offset`.", 2**53),
            "limit": _number("At most so many.", MESSAGES_MAX, 1),
            "search": Parameter(
                "Only those with this in payload, key or headers.",
                {"type": "string", "maxLength": 200},
            ),
            "format": Parameter(
                "How to show payloads.",
                {"type": "string", "enum": ["auto", "json", "text", "arrow", "hex"]},
            ),
        },
    ),
    ("POST", f"{TOPIC}/messages"): Detail("Send a message.", b.Done, b.SendMessage),
    ("POST", f"{TOPIC}/groups"): Detail("Create a consumer group.", b.Done, b.CreateGroup),
    ("GET", f"{TOPIC}/groups/{{group}}"): Detail(
        "A consumer group: members, lag of each partition, lag over time.", b.GroupInfo
    ),
    ("DELETE", f"{TOPIC}/groups/{{group}}"): Detail("Delete a consumer group.", b.Done),
    ("GET", "/api/v1/groups"): Detail("Consumer groups that the user may see.", b.GroupRows),
    ("GET", "/api/v1/clients"): Detail("Who is connected to the broker.", b.ClientRows),
    ("GET", "/api/v1/users"): Detail("Users.", b.UserRows),
    ("POST", "/api/v1/users"): Detail("Create a user with a role.", b.Done, b.CreateUser),
    ("GET", "/api/v1/users/{user}"): Detail("A user and their rights.", b.UserInfo),
    ("PUT", "/api/v1/users/{user}"): Detail(
        "Let a user in or keep them out.", b.Done, b.UpdateUser
    ),
    ("DELETE", "/api/v1/users/{user}"): Detail("Delete a user.", b.Done),
    ("GET", "/api/v1/cluster"): Detail(
        "Nodes, brokers, placement managers, health.", b.ClusterInfo
    ),
}


PIPELINE_DETAILS: Mapping[tuple[str, str], Detail] = {
    ("GET", "/api/problems"): Detail(
        "Everything that is wrong, worst first, and how all pipelines are.", Situation
    ),
    ("GET", f"{p.PIPELINE}/live"): Detail(
        "One pipeline as its page shows it.",
        p.PipelineLive,
        query={
            "after_ms": Parameter(
                "Only windows that were heard of after this time.",
                {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
            )
        },
    ),
    ("GET", f"{p.PIPELINE}/errors"): Detail(
        "Its errors, newest first, each with its log lines.", p.PipelineErrors
    ),
    ("GET", d.LETTERS): Detail("Dead-letter topics of its operators.", d.LetterBoxes),
    ("GET", f"{d.LETTERS}/{{operator}}"): Detail(
        "An operator's dead letters, newest first.",
        d.DeadLetters,
        query={
            "topic": "Which, where the operator has several.",
            "count": Parameter(
                "At most so many of each partition.",
                {"type": "integer", "minimum": 1, "maximum": d.LETTERS_MAX},
            ),
            "all": Parameter(
                "Also those that were sent again.", {"type": "string", "enum": ["true", "false"]}
            ),
        },
    ),
    ("POST", f"{d.LETTERS}/{{operator}}/redrive"): Detail(
        "Send dead letters again, to where they came from.",
        d.RedriveDone,
        d.Redrive,
        query={"topic": "Which, where the operator has several."},
    ),
    ("GET", f"{p.PIPELINE}/containers/{{container}}/logs"): Detail(
        "The last lines of a container.",
        text=True,
        query={
            "lines": Parameter(
                "How many.", {"type": "integer", "minimum": 1, "maximum": p.LOG_LINES_MAX}
            ),
            "level": Parameter(
                "Only these and worse.", {"type": "string", "enum": list(p.LEVELS[1:])}
            ),
        },
    ),
}
