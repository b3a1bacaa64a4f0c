"""Calls from a placement manager to a data node."""

from __future__ import annotations

import pytest

from headrace.errors import NotLeaderError
from headrace.net.sbp_server import Payload, Reply
from headrace.placement.node_calls import NodeCalls, RangeSync
from headrace.sbp_client.channels import Connect
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Code


class FakeNode:
    def __init__(self) -> None:
        self.leading = True
        self.calls: list[Code] = []

    def connect_to(self, address: str) -> Connect:
        async def connect() -> FakeNode:
            self.leading = False  # it took that long
            return self

        return connect

    def check(self) -> None:
        if not self.leading:
            raise NotLeaderError("not the leader")

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        self.calls.append(code)
        assert isinstance(message, m.SyncRangesRequest)
        (wanted,) = message.stream_ranges
        result = m.SyncRangesResult(wanted.stream_id, wanted.ranges, OK)
        return Reply(m.SyncRangesResponse(sync_responses=(result,), status=OK))

    async def close(self) -> None:
        pass


async def test_who_leads_no_more_opens_no_range() -> None:
    """The lease may run out while the connection is made: the last look is after that."""
    node = FakeNode()
    calls = NodeCalls(node.connect_to, timeout=1.0, version=lambda: 7)
    wanted = RangeSync(m.Range(stream_id=1, range_index=0), durability=0)
    with pytest.raises(NotLeaderError):
        await calls.sync("node:1", [wanted], check=node.check)
    assert node.calls == []
    node.leading = True
    (answer,) = await calls.sync("node:1", [wanted], check=node.check)
    assert answer == wanted.range
    await calls.close()
