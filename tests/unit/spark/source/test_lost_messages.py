"""Messages that were lost and given up by an operator, in the middle of what a task reads."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.connection import BrokerConnection
from headrace.client.partition_reader import Access
from headrace.client.url import ServerUrl
from headrace.errors import LostRecordsError
from headrace.spark.options import Credentials, Target
from headrace.spark.source.batch_plan import DataLossError, OffsetRange
from headrace.spark.source.reading import Reading
from tests.simulator.runtime import Simulation

SPAN = OffsetRange("orders", ("7", 0), 0, 0, 10, cluster="here")
TARGET = Target("broker:8090", Credentials("iggy", "iggy"), "shop", "orders")
ACCESS = Access(b"ticket", 1 << 60, "pm:1", {SPAN.key: 3})


class Holed:
    """Offsets 5 and 6 are gone; an area is named by where it begins."""

    async def fetch(
        self, access: Access, key: object, start: int, end: int, *, local: bool
    ) -> tuple[list[Any], int]:
        if start in (5, 6):
            raise LostRecordsError(offset=start, resumed=7)
        return [f"from {start}"], 5 if start < 5 else end

    async def close(self) -> None:
        pass


def unused_broker(simulation: Simulation) -> BrokerConnection:
    return BrokerConnection(simulation.runtime("worker"), ServerUrl("broker"), retry_seconds=1)


def read(*, skips_lost: bool) -> list[Any]:
    simulation = Simulation(1)

    async def main() -> list[Any]:
        reading = Reading(unused_broker(simulation))
        reading._reader.data_nodes = Holed()  # type: ignore[assignment]  # stands for the data nodes
        return [
            area
            async for areas in reading.read(
                TARGET, ACCESS, SPAN, "data-nodes", skips_lost=skips_lost
            )
            for area in areas
        ]

    return simulation.run(main())


def test_a_task_goes_on_behind_them_when_it_was_told_to() -> None:
    assert read(skips_lost=True) == ["from 0", "from 7"]


def test_a_task_fails_where_they_begin_and_says_what_to_do() -> None:
    with pytest.raises(DataLossError, match=r"messages 5 to 6 .* onDataLoss=skip"):
        read(skips_lost=False)


def test_what_lies_before_them_is_read_first() -> None:
    simulation = Simulation(1)
    found: list[Any] = []

    async def main() -> None:
        reading = Reading(unused_broker(simulation))
        reading._reader.data_nodes = Holed()  # type: ignore[assignment]  # as above
        async for areas in reading.read(TARGET, ACCESS, SPAN, "data-nodes"):
            found.extend(areas)

    with pytest.raises(DataLossError):
        simulation.run(main())
    assert found == ["from 0"]
