"""The gate in front of a connection."""

from __future__ import annotations

import asyncio

from headrace.net.flow import Gate


async def entered(gate: Gate, size: int) -> asyncio.Task[None]:
    task = asyncio.create_task(gate.enter(size))
    await asyncio.sleep(0)
    return task


async def test_count_and_bytes_are_bounded() -> None:
    gate = Gate(count_max=2, bytes_max=100)
    await gate.enter(60)
    too_many_bytes = await entered(gate, 41)
    assert not too_many_bytes.done()
    gate.leave(60)
    await too_many_bytes
    await gate.enter(1)
    too_many = await entered(gate, 1)
    assert not too_many.done()
    assert (gate.count, gate.bytes) == (2, 42)
    gate.leave(1)
    await too_many


async def test_one_of_any_size_passes_an_empty_gate() -> None:
    gate = Gate(count_max=2, bytes_max=10)
    await asyncio.wait_for(gate.enter(1000), 1)
    assert not (await entered(gate, 0)).done()  # 1000 > 10: nothing more until it leaves
    gate.leave(1000)


async def test_first_come_first_served() -> None:
    gate = Gate(count_max=10, bytes_max=10)
    await gate.enter(8)
    large = await entered(gate, 9)
    small = await entered(gate, 1)  # would fit, but came later
    assert not small.done()
    gate.leave(8)
    await asyncio.gather(large, small)


async def test_whoever_gives_up_lets_the_next_one_in() -> None:
    gate = Gate(count_max=10, bytes_max=10)
    await gate.enter(8)
    large, other, small = [await entered(gate, size) for size in (9, 9, 1)]
    other.cancel()
    large.cancel()
    await asyncio.gather(large, other, return_exceptions=True)
    await asyncio.wait_for(small, 1)
    gate.leave(8)
    gate.leave(1)
    assert (gate.count, gate.bytes) == (0, 0)


async def test_cancelled_in_the_moment_of_admission_gives_the_place_back() -> None:
    gate = Gate(count_max=1, bytes_max=10)
    await gate.enter(1)
    waiting = await entered(gate, 1)
    gate.leave(1)  # admits it
    waiting.cancel()  # before it could run
    await asyncio.gather(waiting, return_exceptions=True)
    assert (gate.count, gate.bytes) == (0, 0)
