"""Whose pipelines a user sees: those whose topics' messages they may read, all of them.

What a pipeline shows is made of its topics: recordings are rows of theirs, errors and logs quote
them, its figures count them. So who may read the messages of every topic that it reads or writes
sees it, as does who may manage the server (they could run such a pipeline themselves); to anybody
else there is none of that name. The topics that the controller makes between containers hold
nothing but what comes of those, and dead letters are asked of the broker as the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from starlette.requests import Request

from headrace.errors import NotFoundError
from headrace.pipeline.controller.views import (
    ApplicationRow,
    ApplicationView,
    ControllerStatistics,
)
from headrace.web.broker_api.catalogue import Catalogue, may
from headrace.web.metrics.pipelines import Measured
from headrace.web.server.logins import Login
from headrace.wire.iggy.commands import Permission

BASES = ("/api/v1/pipelines/{name}", "/ws/v2/stram/{name}")
"""Below these paths everything is about the pipeline that they name."""

T = TypeVar("T")


class PipelineRights:
    def __init__(self, topics_of: Callable[[str], Sequence[str]], catalogue: Catalogue) -> None:
        """`topics_of`: what an application reads and writes, `stream/topic`; NotFoundError."""
        self._topics_of = topics_of
        self._catalogue = catalogue

    def sees(self, login: Login, name: str) -> bool:
        if login.may_manage or may(login.permissions, Permission.POLL):
            return True
        try:
            topics = self._topics_of(name)
        except NotFoundError:
            return False
        return bool(topics) and all(self._may_read(login, one) for one in topics)

    def check(self, login: Login, name: str) -> None:
        """The same answer for what is not there and for what is not theirs."""
        if not self.sees(login, name):
            raise NotFoundError("no such application", name=name)

    def seen(self, login: Login, rows: Iterable[T], name: Callable[[T], str]) -> list[T]:
        return [one for one in rows if self.sees(login, name(one))]

    def seen_rows(self, login: Login, rows: Iterable[ApplicationRow]) -> list[ApplicationRow]:
        return self.seen(login, rows, lambda one: one.name)

    def guard(self, path: str) -> Callable[[Login, Request], None] | None:
        """What holds every path below a pipeline's name against this; None for other paths."""
        if not path.startswith(BASES):
            return None

        def allow(login: Login, request: Request) -> None:
            self.check(login, request.path_params["name"])

        return allow

    def may_see_topic(self, login: Login, address: str) -> bool:
        """Whether the user may see that there is such a topic."""
        return self._allowed(login, Permission.READ_TOPIC, address)

    def _may_read(self, login: Login, address: str) -> bool:
        return self._allowed(login, Permission.POLL, address)

    def _allowed(self, login: Login, action: Permission, address: str) -> bool:
        if may(login.permissions, action):
            return True
        state = self._catalogue.find(*address.split("/", 1)) if "/" in address else None
        if state is None:
            return False  # nobody knows whose it would be
        return may(login.permissions, action, state.stream.id, state.topic.id)


class SeenPipelines:
    """The controller as `metrics` reads it, with what a user sees of it. Who may read the server's
    state sees the figures of all: they hold no row."""

    def __init__(self, pipelines: Measured, rights: PipelineRights, login: Login) -> None:
        self._pipelines = pipelines
        self._rights = rights
        self._login = login
        self._all = may(login.permissions, Permission.READ_SERVERS)

    def list(self) -> list[ApplicationRow]:
        rows = self._pipelines.list()
        return rows if self._all else self._rights.seen_rows(self._login, rows)

    def show(self, name: str) -> ApplicationView:
        return self._pipelines.show(name)

    def statistics(self) -> ControllerStatistics:
        allowed = self._all or self._login.may_manage
        return self._pipelines.statistics() if allowed else ControllerStatistics()
