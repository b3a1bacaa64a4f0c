"""Who reads which partition in a consumer group. Pure, and kept in memory only: members are
connections, so a broker starts with none.

Partitions go round robin over the members in the order they joined; every change of members or
partitions assigns them anew. Numbers of partitions are arguments: the catalogue knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.wire.iggy.refusals import MemberNotFoundError


@dataclass(slots=True)
class Member:
    client_id: int
    partitions: list[int] = field(default_factory=list)
    _visits: int = 0
    _current: int | None = None

    def next_partition(self) -> int | None:
        """The partition to poll now: each in turn. None when there are more members than work."""
        if not self.partitions:
            return None
        self._current = self.partitions[self._visits % len(self.partitions)]
        self._visits += 1
        return self._current

    def current_partition(self) -> int | None:
        """The one polled last, while it is still assigned here."""
        if self._current in self.partitions:
            return self._current
        return self.partitions[0] if self.partitions else None

    def position(self) -> tuple[int, int | None]:
        """How many polls there were, and which partition the last one was of."""
        return self._visits, self._current

    def resume(self, position: tuple[int, int | None]) -> None:
        """Go on where another worker was."""
        self._visits, self._current = position


class Membership:
    """Members of every group, by group uid."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[int, Member]] = {}
        self._joined: dict[int, dict[int, None]] = {}  # client id -> group uids, in join order
        self._changes = 0
        self._generations: dict[int, int] = {}
        self.on_change: Callable[[int], None] = lambda _: None
        """Told the uid of a group whose partitions were assigned anew, or that is gone."""

    def begin(self, epoch: int) -> None:
        """Number assignments above those that any earlier leader made."""
        self._changes = epoch << 32

    def generation(self, group_uid: int) -> int:
        """Another one after each assignment of the group's partitions."""
        return self._generations.get(group_uid, 0)

    def groups(self) -> list[int]:
        """Uids of the groups that have members."""
        return list(self._groups)

    def members(self, group_uid: int) -> list[Member]:
        return list(self._groups.get(group_uid, {}).values())

    def member(self, group_uid: int, client_id: int) -> Member:
        member = self._groups.get(group_uid, {}).get(client_id)
        if member is None:
            raise MemberNotFoundError(group=group_uid, client=client_id)
        return member

    def groups_of(self, client_id: int) -> list[int]:
        return list(self._joined.get(client_id, ()))

    def join(self, group_uid: int, client_id: int, *, partitions: int) -> None:
        """Joining twice changes nothing."""
        members = self._groups.setdefault(group_uid, {})
        if client_id in members:
            return
        members[client_id] = Member(client_id)
        self._joined.setdefault(client_id, {})[group_uid] = None
        self.assign(group_uid, partitions=partitions)

    def leave(self, group_uid: int, client_id: int, *, partitions: int) -> None:
        self.member(group_uid, client_id)
        self._forget(group_uid, client_id)
        if group_uid in self._groups:
            self.assign(group_uid, partitions=partitions)
        else:
            self.on_change(group_uid)

    def assign(self, group_uid: int, *, partitions: int) -> None:
        members = self.members(group_uid)
        self._changes += 1
        self._generations[group_uid] = self._changes
        for index, member in enumerate(members):
            member.partitions = list(range(index, partitions, len(members)))
        self.on_change(group_uid)

    def drop_group(self, group_uid: int) -> None:
        """The group was deleted."""
        for client_id in list(self._groups.get(group_uid, ())):
            self._forget(group_uid, client_id)
        self.on_change(group_uid)

    # -- copies of it, kept by whoever does not decide

    def rows(self) -> list[tuple[int, int, list[tuple[int, list[int]]]]]:
        """Of each group its uid, generation, and members with their partitions."""
        return [
            (uid, self.generation(uid), [(m.client_id, m.partitions) for m in members.values()])
            for uid, members in self._groups.items()
        ]

    def take(self, rows: Iterable[tuple[int, int, list[tuple[int, list[int]]]]]) -> None:
        """Become what another one is; members that stay go on where they were."""
        before, self._groups, self._joined = self._groups, {}, {}
        self._generations = {}
        for uid, generation, members in rows:
            self._generations[uid] = generation
            kept = before.get(uid, {})
            for client_id, partitions in members:
                member = kept.get(client_id) or Member(client_id)
                member.partitions = partitions
                self._groups.setdefault(uid, {})[client_id] = member
                self._joined.setdefault(client_id, {})[uid] = None

    def _forget(self, group_uid: int, client_id: int) -> None:
        members, joined = self._groups[group_uid], self._joined[client_id]
        del members[client_id], joined[group_uid]
        if not members:
            del self._groups[group_uid]
            self._generations.pop(group_uid, None)
        if not joined:
            del self._joined[client_id]
