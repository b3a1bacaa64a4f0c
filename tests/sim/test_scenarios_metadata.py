"""Placement metadata that was put back to an earlier day: nothing that nodes hold is lost by it."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from headrace.errors import NotFoundError
from headrace.placement.metadata.guarded_store import RECORDS
from headrace.placement.metadata.records import CounterRecord, encode_record
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.storage.layout import RangeKey
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import OutdatedMetadataError
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import batch
from tests.sim.cluster import NODE_SETTINGS
from tests.sim.ending import insist
from tests.sim.scene import Scene, failing, play

VERSION = f"{RECORDS}counters/version"


def records_of(scene: Scene) -> dict[str, Any]:
    values = scene.cluster.metadata._values
    return {
        key: copy.copy(value) for key, value in values.items() if not key.startswith("election")
    }


async def put_back(scene: Scene, records: dict[str, Any], *, version: int = -1) -> None:
    """Every placement manager restarts on that; `version`: as if it were newer than it is."""
    for host in scene.cluster.managers:
        scene.cluster.crash(host)
    values = scene.cluster.metadata._values
    values.clear()
    values.update({key: copy.copy(value) for key, value in records.items()})
    if version >= 0:
        values[VERSION].value = encode_record(CounterRecord(name="version", bound=version))
    for host in scene.cluster.managers:
        await scene.cluster.start_placement(host)
    await scene.sleep(5)


def held(scene: Scene, stream_id: int) -> int:
    """Replicas that have the stream's records on their disks, whether or not they serve them."""
    return sum(
        any(state.key.stream_id == stream_id for state in service.store.ranges())
        for service in scene.cluster.services.values()
    )


def quarantined(scene: Scene) -> list[RangeKey]:
    return [key for service in scene.cluster.services.values() for key in service.quarantine]


async def adopt(scene: Scene, **fields: Any) -> m.AdoptResponse:
    answer = await insist(lambda: scene.client.adopt(**fields))
    assert isinstance(answer, m.AdoptResponse)
    return answer


def test_older_metadata_is_refused_until_the_newer_is_back() -> None:
    async def script(scene: Scene) -> None:
        old = await scene.create(replicas=3)
        await scene.append(old, 3)
        before = records_of(scene)
        late = await scene.create(replicas=3)
        await scene.append(late, 5)
        await scene.append(old, 3)
        await scene.sleep(2 * NODE_SETTINGS.heartbeat_interval_ms / 1000)
        newest = records_of(scene)

        await put_back(scene, before)
        await scene.sleep(60)
        assert held(scene, late) == 3, "nobody believes that the stream is gone"
        assert not quarantined(scene)
        assert isinstance(await failing(scene.create(replicas=3)), OutdatedMetadataError)
        told = await insist(scene.client.describe_cluster)
        assert told.metadata_seen > told.metadata_version >= 0

        await put_back(scene, newest)
        await scene.append(late, 1)
        for stream_id in (old, late):
            await scene.check_written(stream_id)

    play(script)


def test_what_was_written_since_is_adopted_with_older_metadata() -> None:
    """`headrace cluster accept-metadata`, then a stream that it has never heard of by its id."""

    async def script(scene: Scene) -> None:
        old = await scene.create(replicas=3)
        await scene.append(old, 3)
        before = records_of(scene)
        late = await scene.create(replicas=3)
        await scene.append(late, 5)
        for _ in range(3):  # ranges that the older metadata does not have
            await scene.client.seal(old, scene.ranges(old)[-1].range_index)
            await scene.append(old, 2)
        await scene.sleep(2 * NODE_SETTINGS.heartbeat_interval_ms / 1000)

        await put_back(scene, before)
        with pytest.raises(OutdatedMetadataError):
            await scene.client.adopt()
        answer = await adopt(scene, accept_metadata=True)
        assert {one.stream_id for one in answer.ranges} == {old}
        await scene.check_written(old)
        await scene.append(old, 1)

        await scene.until(lambda: len(quarantined(scene)) == 3, 60)
        assert {key.stream_id for key in quarantined(scene)} == {late}
        assert isinstance(await failing(scene.client.bounds(late)), NotFoundError)
        fresh = await scene.create(replicas=3)
        assert fresh > late, "its id is not given to another"
        answer = await adopt(scene, stream_id=late)
        assert [one.stream_id for one in answer.ranges] == [late]
        await scene.check_written(late)
        await scene.append(late, 1)
        await scene.until(lambda: not quarantined(scene), 60)
        for stream_id in (old, late):
            await scene.check_written(stream_id)

    play(script, whole=False)  # the checker takes metadata that goes back for a violation


def test_unknown_ranges_are_kept_aside_and_come_back() -> None:
    """Metadata whose version does not give it away."""

    async def script(scene: Scene) -> None:
        before = records_of(scene)
        late = await scene.create(replicas=3)
        await scene.append(late, 5)
        newest = records_of(scene)

        await put_back(scene, before, version=1_000_000)
        await scene.until(lambda: len(quarantined(scene)) == 3, 60)
        assert held(scene, late) == 3
        host = scene.cluster.nodes[0]
        scene.cluster.crash(host)
        await scene.cluster.start_node(host)
        await scene.sleep(60)
        assert held(scene, late) == 3, "over a restart, too"
        told = await insist(scene.client.describe_cluster)
        assert sum(max(0, node.ranges_quarantined) for node in told.nodes) == 3

        await put_back(scene, newest, version=2_000_000)
        await scene.until(lambda: not quarantined(scene), 60)
        await scene.check_written(late)
        await scene.append(late, 1)
        await scene.check_written(late)

    play(script, whole=False)


def test_a_partition_comes_back_under_its_name() -> None:
    """Although somebody looked for it meanwhile, and made an empty one."""
    name = "p/7/0/0"

    async def script(scene: Scene) -> None:
        before = records_of(scene)
        late = await scene.create(replicas=3, name=name)
        writer = await OwnedStream.open(scene.client, late, 1)
        header, *body = batch(b"kept")
        assert isinstance(header, bytearray)
        await writer.append(header, body)
        await writer.close()
        await scene.sleep(2 * NODE_SETTINGS.heartbeat_interval_ms / 1000)
        await put_back(scene, before)
        await adopt(scene, accept_metadata=True)
        await scene.until(lambda: len(quarantined(scene)) == 3, 60)
        empty = await scene.create(replicas=3, name=name)
        assert empty != late
        error = await failing(scene.client.adopt(late))
        assert "say its name" in str(error)
        await adopt(scene, stream_id=late, name=name)
        assert await scene.create(replicas=3, name=name) == late
        await scene.until(lambda: not quarantined(scene), 60)
        assert list((await insist(lambda: scene.read_all(late))).values()) == [b"kept"]

    play(script, whole=False)


def test_what_nobody_wants_goes_after_its_time() -> None:
    async def script(scene: Scene) -> None:
        before = records_of(scene)
        late = await scene.create(replicas=3)
        await scene.append(late, 5)
        await put_back(scene, before, version=1_000_000)
        await scene.until(lambda: len(quarantined(scene)) == 3, 60)
        await scene.sleep(80)
        assert held(scene, late) == 3
        await scene.sleep(60)
        assert held(scene, late) == 0
        assert not quarantined(scene)

    settings = msgspec.structs.replace(NODE_SETTINGS, quarantine_ms=100_000)
    play(script, whole=False, node_settings=settings)


def test_deleted_trimmed_and_moved_ranges_go_at_once() -> None:
    """What the placement manager knows the fate of is no riddle."""

    async def script(scene: Scene) -> None:
        deleted, trimmed = await scene.create(replicas=3), await scene.create(replicas=3)
        for stream_id in (deleted, trimmed):
            await scene.append(stream_id, 3)
        await scene.client.seal(trimmed, 0)
        await scene.append(trimmed, 2)
        away = next(h for h in scene.cluster.nodes if h in scene.hosts(deleted))
        scene.cluster.crash(away)
        await scene.client.delete_stream(deleted)
        await scene.client.trim(trimmed, 4)
        await scene.sleep(1)
        await scene.cluster.start_node(away)
        service = scene.cluster.services[away]
        await scene.until(
            lambda: all(state.key.stream_id != deleted for state in service.store.ranges()), 30
        )
        await scene.sleep(20)
        assert not quarantined(scene)

    play(script)


def test_a_message_of_an_outdated_manager_changes_nothing() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)
        await scene.sleep(3 * NODE_SETTINGS.heartbeat_interval_ms / 1000)
        host = scene.primary(stream)
        orders: dict[Code, m.Message] = {
            Code.DELETE_STREAMS: m.DeleteStreamsRequest(1000, (m.Stream(stream),), 1),
            Code.TRIM_STREAMS: m.TrimStreamsRequest(1000, (m.TrimmedStream(stream, 2),), 1),
            Code.SEAL_RANGES: m.SealRangesRequest(1000, (m.RangeId(stream, 0),), 1),
            Code.SYNC_RANGES: m.SyncRangesRequest(1000, (), 1),
        }
        for code, request in orders.items():
            with pytest.raises(OutdatedMetadataError):
                await scene.call(host, code, request)
        await scene.append(stream, 1)
        await scene.check_written(stream)

    play(script)
