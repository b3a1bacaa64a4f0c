"""What a driver lends its tasks: the right to read these topics, or to stage rows for that one.

A container of a pipeline holds a grant for all of its application's topics (`net/credentials`). Its
tasks, on whatever machine, get a narrower one with their work, which lasts some hours, and never
the grant itself. Where the driver logs in with a user's password or token, tasks find theirs in
their own environment, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headrace.net.credentials import Scope, exactly, is_grant, narrow_grant
from headrace.runtime.system import system_runtime
from headrace.spark.options import Credentials, Lent, SourceOptions, Target

TASK_MS = 8 * 3_600_000
"""The tasks of a long batch, a backfill's say, begin hours after it was planned. It is less than
what is left of a container's own."""


def lend(
    target: Target,
    *,
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    publishers: Iterable[str] = (),
) -> Target:
    """The target for tasks, which may read and write these topics (patterns, `stream/topic`), under
    these publishers, and close no window."""
    held = target.credentials.resolve_token()
    if not is_grant(held):
        return target
    scope = Scope(
        exp=system_runtime().clock.now_ms() + TASK_MS,
        reads=tuple(reads),
        writes=tuple(writes),
        publishers=tuple(publishers),
        closes=False,
    )
    named = " ".join((*scope.reads, ">", *scope.writes, ">", *scope.publishers))
    return replace(target, credentials=Credentials(lent=Lent(named, narrow_grant(held, scope))))


def topic_of(target: Target) -> str:
    return f"{exactly(target.stream)}/{exactly(target.topic)}"


def lend_writing(target: Target, publisher: str) -> Target:
    """`publisher` is a pattern."""
    return lend(target, writes=(topic_of(target),), publishers=(publisher,))


def lend_reading(options: SourceOptions) -> Credentials | None:
    """For the tasks of one batch; None where they have their own."""
    stream, topics = options.target.stream, options.topics
    patterns = (topics.pattern,) if topics.pattern else map(exactly, topics.names)
    letters = options.format.dead_letter_topic
    writes = []
    if letters:
        from headrace.spark.formats.dead_letters import dead_letter_target

        writes.append(topic_of(dead_letter_target(replace(options.target, topic=""), letters)))
    reads = [f"{exactly(stream)}/{each}" for each in patterns]
    credentials = lend(options.target, reads=reads, writes=writes).credentials
    return credentials if credentials.lent is not None else None
