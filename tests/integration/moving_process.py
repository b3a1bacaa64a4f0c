"""One of two processes that pass a client's connection to and fro: `FOLDER NAME OTHER`.

Requests of 8 bytes are answered by themselves and the name of the process. After every RUN of them
the connection moves to the other process, with whatever has arrived behind. Prints the port, then
serves until its standard input ends; the requests it served are in the answer to any call.
"""

from __future__ import annotations

import asyncio
import sys

from headrace.net.peer_link import PeerLink, UnixAddress
from headrace.net.peer_server import Answer, PeerServer
from headrace.runtime.interfaces import Connection, DirectConnection, MovableConnection
from headrace.runtime.system import run, system_runtime

SECRET = b"secret of the cluster that is tested"
REQUEST_BYTES = 8
RUN = 50


class MovingServer:
    def __init__(self, folder: str, name: str, other: str) -> None:
        self.runtime = system_runtime()
        self.name = name
        self.served = 0
        self.path = f"{folder}/{name}"
        self.link = PeerLink(
            self.runtime, secret=SECRET, name=name, address=UnixAddress(f"{folder}/{other}")
        )
        self.peers = PeerServer(
            self.runtime,
            secret=SECRET,
            name=name,
            on_request=self.on_request,
            on_move=lambda *_: self.serve,
        )

    def on_request(self, name: str, head: bytes, body: memoryview) -> Answer:
        return b"%d" % self.served, [body]

    async def serve(self, connection: Connection) -> None:
        assert isinstance(connection, MovableConnection)
        assert isinstance(connection, DirectConnection)
        received, count = b"", 0
        while data := await connection.receive():
            received += data
            while len(received) >= REQUEST_BYTES and count < RUN:
                connection.write([received[:REQUEST_BYTES], self.name.encode()])
                received = received[REQUEST_BYTES:]
                count += 1
                self.served += 1
            if count == RUN:
                kept = await self.link.move(connection, b"state", received, timeout=10)
                assert kept is None, "nobody took it"
                return
        connection.close()


async def main(folder: str, name: str, other: str) -> None:
    server = MovingServer(folder, name, other)
    await server.peers.start_unix(server.path)
    listener = await server.runtime.transport.listen("127.0.0.1", 0, server.serve)
    print(listener.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    listener.close()
    await server.link.close()
    await server.peers.close()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
