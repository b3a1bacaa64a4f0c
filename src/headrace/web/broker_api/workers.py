"""Workers and shards: who leads what, how each worker does, and giving a shard to another."""

from __future__ import annotations

from starlette.requests import Request

from headrace.errors import NotFoundError, UnauthorizedError
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import may
from headrace.web.server.endpoints import Endpoint
from headrace.web.server.logins import Broker
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.extensions import ShardMap


def endpoints(broker: Broker) -> list[Endpoint]:
    async def listed(request: Request) -> t.WorkerRows:
        if not may(request.state.login.permissions, Permission.READ_SERVERS):
            raise UnauthorizedError("this needs a user who may read the server's state")
        async with broker.as_user(request.state.credentials) as client:
            return worker_rows(await client.get_shards())

    async def move(request: Request, wanted: t.MoveShard) -> t.ShardMoved:
        shard: str = request.path_params["shard"]
        if not shard.isdecimal() or len(shard) > _DIGITS_MAX:
            raise NotFoundError(f"there is no shard {shard}")
        async with broker.as_user(request.state.credentials) as client:
            moved = await client.move_shard(int(shard), wanted.worker)
        return t.ShardMoved(
            shard=moved.shard, worker=moved.worker or None, pinned=moved.pinned or None
        )

    return [
        Endpoint("GET", "/api/v1/workers", listed, "Workers, how each does, and who leads what."),
        Endpoint(
            "PUT",
            "/api/v1/shards/{shard}",
            move,
            "Give a shard to a worker, by its name or number; empty: balance decides.",
        ),
    ]


_DIGITS_MAX = 9


def worker_rows(found: ShardMap) -> t.WorkerRows:
    return t.WorkerRows(
        workers=[
            t.WorkerRow(**{name: getattr(one, name) for name in t.WorkerRow.__struct_fields__})
            for one in found.workers
        ],
        shards=[
            t.ShardRow(
                shard=one.shard,
                worker=one.worker or None,
                epoch=one.epoch if one.epoch >= 0 else None,
                partitions=one.partitions,
                pinned=one.pinned or None,
            )
            for one in found.shards
        ],
    )
