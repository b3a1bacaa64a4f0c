from __future__ import annotations

import pytest

from headrace.broker.catalogue.groups import Membership
from headrace.wire.iggy.refusals import MemberNotFoundError


def assigned(groups: Membership, group_uid: int = 1) -> dict[int, list[int]]:
    return {m.client_id: m.partitions for m in groups.members(group_uid)}


def test_partitions_go_round_robin_in_join_order() -> None:
    groups = Membership()
    groups.join(1, 70, partitions=5)
    assert assigned(groups) == {70: [0, 1, 2, 3, 4]}
    groups.join(1, 30, partitions=5)
    assert assigned(groups) == {70: [0, 2, 4], 30: [1, 3]}
    groups.join(1, 70, partitions=5)
    assert assigned(groups) == {70: [0, 2, 4], 30: [1, 3]}
    groups.leave(1, 70, partitions=5)
    assert assigned(groups) == {30: [0, 1, 2, 3, 4]}


def test_a_member_visits_its_partitions_in_turn() -> None:
    groups = Membership()
    groups.join(1, 5, partitions=3)
    member = groups.member(1, 5)
    assert member.current_partition() == 0
    assert [member.next_partition() for _ in range(4)] == [0, 1, 2, 0]
    member.next_partition()
    assert member.current_partition() == 1
    groups.join(1, 6, partitions=3)  # 5 keeps 0 and 2; its last polled partition went to 6
    assert member.current_partition() == 0


def test_more_members_than_partitions() -> None:
    groups = Membership()
    groups.join(1, 5, partitions=1)
    groups.join(1, 6, partitions=1)
    idle = groups.member(1, 6)
    assert idle.next_partition() is None
    assert idle.current_partition() is None
    groups.assign(1, partitions=2)
    assert idle.next_partition() == 1


def test_strangers_are_refused() -> None:
    groups = Membership()
    groups.join(1, 5, partitions=1)
    with pytest.raises(MemberNotFoundError):
        groups.member(1, 6)
    with pytest.raises(MemberNotFoundError):
        groups.member(2, 5)
    with pytest.raises(MemberNotFoundError):
        groups.leave(1, 6, partitions=1)


def test_nothing_is_kept_of_clients_and_groups_that_went() -> None:
    groups = Membership()
    groups.join(1, 5, partitions=1)
    groups.join(2, 5, partitions=1)
    groups.join(2, 6, partitions=1)
    assert groups.groups_of(5) == [1, 2]
    groups.drop_group(2)
    groups.drop_group(99)
    assert groups.groups_of(5) == [1]
    assert groups.groups_of(6) == []
    groups.leave(1, 5, partitions=1)
    assert groups._groups == {}
    assert groups._joined == {}
