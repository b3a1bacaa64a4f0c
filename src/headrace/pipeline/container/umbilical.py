"""A container's side of the umbilical.

Where the controller listens stands in `<application path>/recovery/heartbeatUri`; the path is
local or an fsspec address:

    stram://host:port?rpcTimeout=5000&retryDelayMillis=10000&retryTimeoutMillis=300000

The file is read before the first call and again after every failed one. A changed address
replaces the connection and starts the retry budget anew: that is how containers follow a
restarted controller. When the budget is used up the call fails with DeadlineError and the
container is expected to exit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    NotFoundError,
    RemoteProtocolError,
    UnavailableError,
)
from headrace.net.hadoop_rpc import HadoopRpcConnection
from headrace.observability.logging import get_logger
from headrace.pipeline.shared_files import read_shared
from headrace.runtime.interfaces import Disk, Runtime
from headrace.wire.umbilical import codec, rpc
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.tokens import Token, parse_token

log = get_logger(__name__)

SCHEME = "stram"
RPC_TIMEOUT_MS = 5_000
RETRY_DELAY_MS = 10_000
RETRY_TIMEOUT_MS = 300_000  # Spark's queries need no controller to make progress
URI_BYTES_MAX = 4_096
PATH_VARIABLE = "HEADRACE_UMBILICAL_PATH"  # where the URI file is, if not under the application's
TOKEN_FILE_VARIABLE = "HEADRACE_UMBILICAL_TOKEN_FILE"
TOKEN_VARIABLE = "HEADRACE_UMBILICAL_TOKEN"
_USER = "headrace"

Q = TypeVar("Q", bound=m.Message)
R = TypeVar("R", bound=m.Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HeartbeatUri:
    host: str
    port: int
    rpc_timeout_ms: int = RPC_TIMEOUT_MS
    retry_delay_ms: int = RETRY_DELAY_MS
    retry_timeout_ms: int = RETRY_TIMEOUT_MS


def heartbeat_uri_path(application_path: str) -> str:
    return f"{application_path.rstrip('/')}/recovery/heartbeatUri"


def format_heartbeat_uri(uri: HeartbeatUri) -> str:
    host = f"[{uri.host}]" if ":" in uri.host else uri.host
    return (
        f"{SCHEME}://{host}:{uri.port}?rpcTimeout={uri.rpc_timeout_ms}"
        f"&retryDelayMillis={uri.retry_delay_ms}&retryTimeoutMillis={uri.retry_timeout_ms}"
    )


def parse_heartbeat_uri(text: str) -> HeartbeatUri:
    """RemoteProtocolError when it is not one."""
    try:
        parts = urlsplit(text.strip())
        given = parse_qs(parts.query, strict_parsing=bool(parts.query), max_num_fields=16)
        host, port = parts.hostname, parts.port
        rpc_timeout, retry_delay, retry_timeout = (
            int(given[name][-1]) if name in given else default
            for name, default in (
                ("rpcTimeout", RPC_TIMEOUT_MS),
                ("retryDelayMillis", RETRY_DELAY_MS),
                ("retryTimeoutMillis", RETRY_TIMEOUT_MS),
            )
        )
    except ValueError as error:
        raise RemoteProtocolError(f"not a heartbeat URI: {error}", text=text[:200]) from error
    if parts.scheme != SCHEME or not host or not port:
        raise RemoteProtocolError("not a heartbeat URI", text=text[:200])
    if rpc_timeout <= 0 or retry_delay < 0 or retry_timeout < 0:
        raise RemoteProtocolError("a heartbeat URI with an impossible time", text=text[:200])
    return HeartbeatUri(host, port, rpc_timeout, retry_delay, retry_timeout)


def load_token(disk: Disk, environment: Mapping[str, str]) -> Token | None:
    """The token that the launcher handed over, by a file that only this user reads or by the
    variable itself where no file can be shared; None when there is none. Blocks."""
    path = environment.get(TOKEN_FILE_VARIABLE)
    text = disk.read(path).decode("ascii", "replace") if path else environment.get(TOKEN_VARIABLE)
    return parse_token(text) if text else None


class UmbilicalClient:
    """The four calls, each retried within the budget of the URI file.

    A repeated call keeps its id, so that a controller that took the first one answers the same
    again. What the controller answers with an exception is not repeated (RpcRemoteError), nor is a
    call after a login that it refused (UnauthenticatedError): the token was taken back.
    """

    def __init__(self, runtime: Runtime, application_path: str, token: Token | None = None) -> None:
        self._runtime = runtime
        self._token = token
        self._path = heartbeat_uri_path(application_path)
        self._disk = runtime.executor("umbilical", 1)
        self._client_id = runtime.random.bytes(rpc.CLIENT_ID_BYTES)
        self._next_call_id = 0
        self._uri: HeartbeatUri | None = None
        self._connection: HadoopRpcConnection | None = None

    async def get_init_context(self, container_id: str) -> m.StreamingContainerContext | None:
        """None: the controller does not know this container."""
        request = m.GetInitContextRequest(container_id)
        return (await self._call(codec.GET_INIT_CONTEXT, request)).context

    async def log(self, container_id: str, msg: str) -> None:
        await self._call(codec.LOG, m.LogRequest(container_id, msg))

    async def report_error(
        self,
        container_id: str,
        operators: tuple[int, ...],
        msg: str,
        log_file_info: m.LogFileInfo | None = None,
    ) -> None:
        request = m.ReportErrorRequest(container_id, operators, msg, log_file_info)
        await self._call(codec.REPORT_ERROR, request)

    async def process_heartbeat(
        self, heartbeat: m.ContainerHeartbeat
    ) -> m.ContainerHeartbeatResponse:
        return await self._call(codec.PROCESS_HEARTBEAT, heartbeat)

    async def close(self) -> None:
        await self._disconnect()
        self._disk.close()

    async def _call(self, call: codec.Call[Q, R], request: Q) -> R:
        call_id = self._next_call_id
        self._next_call_id = (call_id + 1) & rpc.CALL_ID_MAX
        body = codec.encode(request)
        clock = self._runtime.clock
        started = clock.monotonic()
        retry_count = 0
        while True:
            try:
                answer = await self._try(call_id, call.name, body, retry_count)
                return codec.decode(call.response, answer)
            except (UnavailableError, DeadlineError, NotFoundError) as error:
                failure: HeadraceError = error
            await self._disconnect()
            if await self._follow():
                started = clock.monotonic()  # another controller: a budget of its own
                retry_count += 1
                continue
            delay, budget = self._patience()
            left = budget - (clock.monotonic() - started)
            if left <= 0:
                raise DeadlineError(
                    "the controller cannot be reached", method=call.name, seconds=budget
                ) from failure
            log.warning("umbilical_retry", method=call.name, reason=str(failure))
            await clock.sleep(min(delay, left))  # the last attempt comes when the budget ends
            retry_count += 1

    async def _try(self, call_id: int, method: str, body: bytes, retry_count: int) -> bytes:
        uri = self._uri or await self._read_uri()
        self._uri = uri
        timeout = uri.rpc_timeout_ms / 1000
        if self._connection is not None and not self._connection.usable:
            await self._disconnect()
        if self._connection is None:
            self._connection = await HadoopRpcConnection.connect(
                self._runtime,
                uri.host,
                uri.port,
                protocol=codec.PROTOCOL_NAME,
                version=codec.PROTOCOL_VERSION,
                client_id=self._client_id,
                user=_USER,
                token=self._token,
                timeout=timeout,
            )
        return await self._connection.call(
            call_id, method, body, retry_count=retry_count, timeout=timeout
        )

    async def _follow(self) -> bool:
        """Read the file again; whether it names another address than the one that failed."""
        try:
            uri = await self._read_uri()
        except (NotFoundError, RemoteProtocolError, UnavailableError):
            return False  # the controller is on its way, or the store is away for a moment
        moved = self._uri is not None and uri != self._uri
        self._uri = uri
        return moved

    def _patience(self) -> tuple[float, float]:
        delay_ms = self._uri.retry_delay_ms if self._uri else RETRY_DELAY_MS
        budget_ms = self._uri.retry_timeout_ms if self._uri else RETRY_TIMEOUT_MS
        return delay_ms / 1000, budget_ms / 1000

    async def _read_uri(self) -> HeartbeatUri:
        disk = self._runtime.disk
        data = await self._disk.run(read_shared, disk, self._path, bytes_max=URI_BYTES_MAX)
        return parse_heartbeat_uri(data.decode("utf-8", "replace"))

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class BlockingUmbilicalClient:
    """The same calls for a thread without an event loop; one thread at a time.

    Its loop turns only during a call, so a connection that broke in between is noticed, and
    replaced, by the next one.
    """

    def __init__(self, runtime: Runtime, application_path: str, token: Token | None = None) -> None:
        self._runner = asyncio.Runner()
        self._client = self._run(_make(runtime, application_path, token))

    def get_init_context(self, container_id: str) -> m.StreamingContainerContext | None:
        return self._run(self._client.get_init_context(container_id))

    def log(self, container_id: str, msg: str) -> None:
        self._run(self._client.log(container_id, msg))

    def report_error(
        self,
        container_id: str,
        operators: tuple[int, ...],
        msg: str,
        log_file_info: m.LogFileInfo | None = None,
    ) -> None:
        self._run(self._client.report_error(container_id, operators, msg, log_file_info))

    def process_heartbeat(self, heartbeat: m.ContainerHeartbeat) -> m.ContainerHeartbeatResponse:
        return self._run(self._client.process_heartbeat(heartbeat))

    def close(self) -> None:
        self._run(self._client.close())
        self._runner.close()

    def __enter__(self) -> BlockingUmbilicalClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


async def _make(runtime: Runtime, application_path: str, token: Token | None) -> UmbilicalClient:
    return UmbilicalClient(runtime, application_path, token)
