"""Followers of a StateLog in a simulated cluster, held against what its writers were answered.

Every follower applies the same events in the same order, once each. What one of them applied is on
as many disks as it takes in that moment, and is never taken back. `current_at` is believed: what
was answered to a writer before that time is in the state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.sbp_client.state_follower import StateFollower
from tests.sim.cluster import Cluster
from tests.sim.workload import Numbers


@dataclass(slots=True)
class Followers:
    cluster: Cluster
    name: str
    truth: list[int] = field(default_factory=list)
    """The events in the order in which the first of the followers applied them."""
    answered_at: dict[int, float] = field(default_factory=dict)
    restores: int = 0
    failures: list[HeadraceError] = field(default_factory=list)
    stopping: bool = False
    end: int = 0
    """Of the log, once nobody writes it any more."""

    def complain(self, text: str) -> None:
        self.cluster.history.complain(f"follower: {text}")

    async def follow(self, host: str) -> Numbers:
        """Until `stopping`, and then up to the end of the log."""
        client = self.cluster.client(host)
        state = _Followed(self)
        follower = await StateFollower.open(
            client, name=self.name, apply=state.apply, restore=state.restore,
            runtime=client.runtime, on_failed=self.failures.append, timeout=300.0,
        )  # fmt: skip
        state.follower = follower
        while not self.stopping:
            await asyncio.sleep(0.05)
            self._check_age(host, follower, state)
        try:
            await follower.wait_applied(self.end, 60.0)
        except HeadraceError as error:
            self.complain(f"{host} is not done: {error!r} {error}")
        await follower.close()
        await client.close()
        return state

    def _check_age(self, host: str, follower: StateFollower, state: Numbers) -> None:
        current_at = follower.current_at
        known = set(state.numbers)
        missing = [e for e, at in self.answered_at.items() if at < current_at and e not in known]
        if missing:
            self.complain(f"{host} says that it has all of {current_at:.3f}, and lacks {missing}")


class _Followed(Numbers):
    def __init__(self, followers: Followers) -> None:
        super().__init__()
        self._followers = followers
        self.follower: StateFollower | None = None

    def apply(self, version: int, kind: str, body: object) -> None:
        super().apply(version, kind, body)
        self._compare(len(self.numbers) - 1)
        if self.follower is not None:
            # Events stand behind everything that was applied before them.
            history = self._followers.cluster.history
            history.check_held(self.follower.stream_id, self.follower.applied_offset + 1)

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        self._followers.restores += bool(self.numbers)
        super().restore(version, chunks)
        self._compare(0)

    def _compare(self, start: int) -> None:
        truth = self._followers.truth
        for at in range(start, len(self.numbers)):
            if at == len(truth):
                truth.append(self.numbers[at])
            elif truth[at] != self.numbers[at]:
                self._followers.complain(f"{self.numbers[at]} at {at}, where {truth[at]} was")
