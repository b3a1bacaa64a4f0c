"""The whole data plane (placement manager, data node, broker) in a thread, on free loopback ports.

It is what `headrace up` runs, with a folder of its own that goes away with it. Real Iggy clients,
the connector and the command line reach it as they would any server.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from types import TracebackType
from typing import Self

from headrace.client.blocking import SyncClient
from headrace.client.sync import SyncIggyClient
from headrace.client.url import parse_url
from headrace.config.broker import BrokerSettings
from headrace.config.settings import Settings
from headrace.net.addresses import parse_address
from headrace.process.data_plane import DataPlane
from headrace.runtime.system import system_runtime

USERNAME = PASSWORD = "iggy"


class LocalBroker:
    """`with LocalBroker() as broker:`, or `start` and `stop`; data and address stay."""

    def __init__(self, *, settings: Settings | None = None) -> None:
        """`settings` replaces the defaults of tests; folder and ports are chosen here."""
        self._folder = tempfile.mkdtemp(prefix="headrace-test-")
        self._settings = settings or Settings()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self._clients: list[SyncIggyClient | SyncClient] = []
        self._port = 0
        self.username = USERNAME
        self.password = PASSWORD
        self.addresses: dict[str, str] = {}
        """Of every part, as `headrace up --ready-file` writes them."""

    @property
    def address(self) -> str:
        """Where Iggy clients connect, `host:port`; also the connector's option `address`."""
        return self.addresses["iggy"]

    @property
    def url(self) -> str:
        """What `headrace.client.connect` takes."""
        return f"headrace://{self.username}:{self.password}@{self.address}"

    def connect(self) -> SyncClient:
        """A blocking client (see docs/client.md), closed with the broker."""
        made = SyncClient(parse_url(self.url, {}))
        self._clients.append(made)
        return made

    def client(self) -> SyncIggyClient:
        """The same for the protocol's own commands, logged in at its first call."""
        host, port = parse_address(self.address)
        made = SyncIggyClient(host, port, username=self.username, password=self.password)
        self._clients.append(made)
        return made

    def start(self) -> Self:
        assert self._thread is None, "it runs"
        self._ready.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="headrace broker", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()
        return self

    def stop(self) -> None:
        """Stop the broker as Ctrl-C does; what was acknowledged is there after the next `start`."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self._thread is None:
            return
        assert self._loop is not None
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._thread = None
        self._raise_failure()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            if self._thread is not None:
                self._thread.join()
                self._thread = None
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        plane = DataPlane(system_runtime(), self._own_settings())
        await plane.start()
        try:
            self.addresses = plane.addresses()
            self._port = parse_address(self.address)[1]
            self._ready.set()
            await self._over.wait()
        finally:
            await plane.close()

    def _own_settings(self) -> Settings:
        import msgspec

        broker: BrokerSettings = msgspec.structs.replace(
            self._settings.broker, root_username=self.username, root_password=self.password
        )
        return msgspec.structs.replace(
            self._settings, data_dir=self._folder, host="127.0.0.1", iggy_port=self._port,
            quic_port=-1,
            placement_port=0, node_port=0, dev=True, broker=broker,
        )  # fmt: skip
