"""Replicas are on different machines, whatever ids a machine has had."""

from __future__ import annotations

import pytest

from headrace.placement.metadata.records import NodeRecord, RangeRecord
from tests.sim.ending import insist
from tests.sim.scene import Scene, play


def addresses_of_ids(scene: Scene) -> dict[int, str]:
    """Every address that an id ever had, from the history of the metadata."""
    found: dict[int, str] = {}
    for transaction in scene.cluster.history.transactions:
        for record in transaction.puts:
            if isinstance(record, NodeRecord) and record.address:
                found[record.node_id] = record.address
    return found


def chosen(scene: Scene) -> list[tuple[int, ...]]:
    return [
        record.replicas
        for transaction in scene.cluster.history.transactions
        for record in transaction.puts
        if isinstance(record, RangeRecord)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_replaced_disk_is_not_chosen_beside_its_successor(seed: int) -> None:
    """The old id was heard of a moment ago; with four nodes it used to be a replica of ranges whose
    other replica was the same machine under its new id."""

    async def script(scene: Scene) -> None:
        first = await scene.create(replicas=3)
        await scene.append(first, 2)
        for host in scene.cluster.nodes[:2]:
            scene.cluster.wipe(host)
            await scene.cluster.start_node(host)
            for _ in range(6):  # long before the old id is missed
                stream = await insist(lambda: scene.create(replicas=3))
                await insist(lambda stream=stream: scene.append(stream, 1))  # type: ignore[misc]
            await scene.until_replicated(first)
        where = addresses_of_ids(scene)
        for replicas in chosen(scene):
            hosts = [where[node_id] for node_id in replicas]
            if len(set(hosts)) < len(hosts):
                # A sealed range may list the dead id until its copy is whole; never a new one.
                raise AssertionError(f"{replicas} are on {hosts}")

    play(script, seed=seed)


def test_what_a_replaced_disk_held_is_copied_at_once() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 5)
        await scene.client.seal(stream, 0)
        lost = scene.hosts(stream, 0)[1]
        scene.cluster.wipe(lost)
        await scene.cluster.start_node(lost)
        begun = scene.simulation.time()
        await scene.until_replicated(stream)
        settings = scene.cluster._placement_settings
        assert scene.simulation.time() - begun < settings.replace_after_ms / 1000
        await scene.check_written(stream)

    play(script)
