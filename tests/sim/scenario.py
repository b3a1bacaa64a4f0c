"""A busy scenario whose trace must depend on its seed alone: `python -m tests.sim.scenario SEED`.

Three replicas of a toy log and two clients that append to all of them, through a partition and two
power cuts. It uses what services use: task groups that fail and cancel, timeouts, executors of
several threads, connections, unsynced files, uuids.
"""

from __future__ import annotations

import asyncio
import sys

from headrace.errors import HeadraceError, UnavailableError
from headrace.runtime import Connection, Runtime
from tests.simulator.runtime import Simulation

HOSTS = ("n1", "n2", "n3")
PORT = 9000
LINE_BYTES = 16


class Replica:
    """Appends each 16-byte line it receives to a file, syncs, and echoes the line."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._executor = runtime.executor("disk", 2)
        runtime.disk.make_folder("/log")
        self._file = runtime.disk.open("/log/lines", create=True)
        runtime.disk.sync_folder("/log")
        self._end = self._file.size() // LINE_BYTES * LINE_BYTES

    @classmethod
    async def start(cls, runtime: Runtime) -> Replica:
        replica = cls(runtime)
        await runtime.transport.listen("0.0.0.0", PORT, replica.serve)
        return replica

    async def serve(self, connection: Connection) -> None:
        waiting = bytearray()
        try:
            async with asyncio.TaskGroup() as group:
                while data := await connection.receive():
                    waiting += data
                    while len(waiting) >= LINE_BYTES:
                        line = bytes(waiting[:LINE_BYTES])
                        del waiting[:LINE_BYTES]
                        group.create_task(self._append(connection, line))
        except* HeadraceError:
            pass  # the client went away

    async def _append(self, connection: Connection, line: bytes) -> None:
        position, self._end = self._end, self._end + LINE_BYTES
        await self._executor.run(self._file.pwrite, [line], position)
        await self._executor.run(self._file.sync_data)
        connection.write([line])
        await connection.drain()


async def append_everywhere(runtime: Runtime, line: bytes) -> None:
    async def one(host: str) -> None:
        connection = await runtime.transport.connect(host, PORT, timeout=0.5)
        try:
            connection.write([line])
            received = bytearray()
            while len(received) < LINE_BYTES:
                if not (data := await connection.receive()):
                    raise UnavailableError("ended early", host=host)
                received += data
        finally:
            connection.close()

    async with asyncio.timeout(1.0), asyncio.TaskGroup() as group:
        for host in HOSTS:
            group.create_task(one(host))


async def client(simulation: Simulation, name: str) -> int:
    runtime = simulation.runtime(name)
    written = 0
    for number in range(30):
        line = runtime.random.uuid().bytes
        try:
            await append_everywhere(runtime, line)
            written += 1
        except* (HeadraceError, TimeoutError) as failures:
            simulation.record(name, f"{number} failed {len(failures.exceptions)}")
            await runtime.clock.sleep(0.05)
    return written


async def main(simulation: Simulation) -> None:
    for host in HOSTS:
        await simulation.on(host, Replica.start(simulation.runtime(host)))
    clients = [simulation.start(name, client(simulation, name)) for name in ("alice", "bob")]
    clock = simulation.runtime("operator").clock
    await clock.sleep(0.1)
    simulation.crash("n2")
    await clock.sleep(0.2)
    await simulation.on("n2", Replica.start(simulation.runtime("n2")))
    simulation.partition("alice", "n1")
    await clock.sleep(2.0)
    simulation.heal()
    simulation.disk("n3").cut_after(100)
    await clock.sleep(0.3)
    await simulation.on("n3", Replica.start(simulation.runtime("n3")))
    for task in clients:
        simulation.record("operator", f"written {await task}")
    for host in HOSTS:
        content = simulation.disk(host).read("/log/lines")
        simulation.record(host, f"{len(content)} bytes {content[-8:].hex()}")


def run(seed: int) -> Simulation:
    simulation = Simulation(seed)
    simulation.run(main(simulation))
    return simulation


if __name__ == "__main__":
    finished = run(int(sys.argv[1]))
    sys.stdout.write("\n".join([*finished.trace, finished.digest(), ""]))
