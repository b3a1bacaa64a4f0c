"""Arrow tables that were made to harm who looks at them, read by the real process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.runtime.system import system_runtime
from headrace.web.broker_api import arrow_reader, arrow_worker, messages
from headrace.web.broker_api.arrow_reader import ArrowReader, Table
from headrace.web.broker_api.arrow_worker import read_table
from headrace.web.broker_api.messages import message_row
from headrace.wire.iggy.messages.messages import Message


def ipc(table: pa.Table | pa.RecordBatch, *, file: bool = False, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    make = pa.ipc.new_file if file else pa.ipc.new_stream
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write(table)
    return bytes(sink.getvalue())


def nulls(count: int) -> bytes:
    """One row: a list of so many nulls, which take no byte."""
    offsets = pa.array([0, count], pa.int32())
    return ipc(pa.record_batch([pa.ListArray.from_arrays(offsets, pa.nulls(count))], ["a"]))


def grown() -> bytes:
    """Zeros, compressed to next to nothing."""
    size = arrow_worker.MEMORY_BYTES_MAX + (64 << 20)
    column = pa.Array.from_buffers(pa.int64(), size // 8, [None, pa.allocate_buffer(size)])
    return ipc(pa.record_batch([column], ["a"]), compression="zstd")


PLAIN = ipc(pa.table({"n": [1, 2]}))


@pytest.fixture
async def reader() -> AsyncIterator[ArrowReader]:
    made = ArrowReader(system_runtime())
    yield made
    await made.close()


def shown(found: Table | str) -> list[list[str | None]]:
    assert isinstance(found, Table), found
    return found.table.rows


async def test_a_list_of_twenty_million_nulls_is_336_bytes_and_costs_nothing(
    reader: ArrowReader,
) -> None:
    bomb = nulls(20_000_000)
    assert len(bomb) < 400
    await reader.read([PLAIN])  # the process has started
    began = time.monotonic()
    (found,) = await reader.read([bomb])
    assert time.monotonic() - began < arrow_reader.SECONDS
    assert shown(found) == [[f"[{'None, ' * 50}…]"]]


async def test_what_takes_too_much_is_shown_as_bytes_and_the_rest_as_tables(
    reader: ArrowReader,
) -> None:
    bomb = grown()
    assert len(bomb) < 100_000
    tables = await reader.read([PLAIN, bomb, PLAIN, b"\xff\xff\xff\xff no table"])
    assert [isinstance(one, Table) for one in tables] == [True, False, True, False]
    assert "too much memory" in str(tables[1])
    assert tables[3] == "", "it is none, and nothing is wrong"
    row = message_row(0, Message(payload=bomb), "auto", tables[1])
    assert (row.format, row.note) == ("hex", tables[1])


async def test_one_that_dies_is_followed_by_another(
    reader: ArrowReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reader.read([PLAIN])
    assert reader._worker is not None
    reader._worker._process.kill()  # type: ignore[attr-defined]  # as the kernel might
    assert shown((await reader.read([PLAIN]))[0]) == [["1"], ["2"]]
    # One that takes too long is ended; two of them, and what else was asked for is not tried.
    monkeypatch.setattr(arrow_reader, "SECONDS", 0.0)
    found = await reader.read([PLAIN, PLAIN, PLAIN])
    assert "too much" in str(found[0])
    assert "others on this page" in str(found[2])
    monkeypatch.undo()
    assert shown((await reader.read([PLAIN]))[0]) == [["1"], ["2"]]


async def test_two_ask_at_once_and_one_gives_up(reader: ArrowReader) -> None:
    first, second = (asyncio.create_task(reader.read([PLAIN] * 3)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert [shown(one) for one in await second] == [[["1"], ["2"]]] * 3
    with pytest.raises(asyncio.CancelledError):
        await first


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([[1, 2]]), "[1, 2]"),
        (pa.array([{"a": [None], "b": "x"}]), "{'a': [None], 'b': 'x'}"),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "[{'key': 'k', 'value': 1}]"),
        (pa.array(["x", "x"]).dictionary_encode().slice(0, 1), "x"),
        (pa.array(["ä" * 2_000], pa.large_string()), "ä" * 500 + "…"),
        (pa.array([b"\xff"], pa.binary(1)), "0xff"),
        (pa.array([[[[[[[[[1]]]]]]]]]), "[[[[[[[…]]]]]]]"),
        (pa.array([1.5]), "1.5"),
        (pa.array([True]), "True"),
        (pa.array([None], pa.list_(pa.int8())), None),
        (pa.RunEndEncodedArray.from_arrays([1], ["run"]), "run"),
    ],
)
@pytest.mark.parametrize("file", [False, True])
def test_values_as_they_were_shown(column: pa.Array, text: str | None, file: bool) -> None:
    found = read_table(ipc(pa.record_batch([column], ["a"]), file=file))
    assert found is not None
    assert found[0].rows == [[text]]


def test_many_columns_and_many_rows_are_cut() -> None:
    wide = read_table(ipc(pa.table({f"c{number}": [1] for number in range(1_000)})))
    assert wide is not None
    assert (len(wide[0].columns), wide[1]) == (arrow_worker.COLUMNS_MAX, True)
    long = read_table(ipc(pa.table({"n": list(range(200))}), file=True))
    assert long is not None
    assert (len(long[0].rows), long[0].count, long[1]) == (50, 200, True)


def test_brackets_within_brackets_do_not_grow() -> None:
    payload = b"[" * 500 + b"[],".ljust(3) * 20_000 + b"1" + b"]" * 500
    row = message_row(0, Message(payload=payload))
    assert row.format == "json"
    assert len(row.value) < 2 * messages.VALUE_BYTES_MAX
    calm = message_row(0, Message(payload=b'[{"a":1},{"b":[2]}]'))
    assert calm.value.startswith('[\n  {\n    "a": 1')
