"""etcd through its JSON gateway: what several placement managers share in a cluster.

Keys and values travel as base64, 64-bit numbers as text, and what is zero or empty is left out.
httpx opens its sockets by itself and so bypasses the runtime seam, as SQLite does; the simulator
uses `MemoryMetadata`, and a test holds both to the same promises.

A request that never left is tried at the next server. So is one that only reads or may happen
twice; a transaction whose answer got lost is not, because only its author can tell what then.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpx

from headrace.config.placement import EtcdSettings, PlacementSettings
from headrace.errors import ConfigError, DiskFullError, UnavailableError
from headrace.placement.metadata.election import (
    Condition,
    CreatedAt,
    KeyValue,
    LeaseElection,
    Outcome,
    RefusedError,
    Transaction,
)
from headrace.placement.metadata.guarded_store import GuardedStore
from headrace.runtime.interfaces import Runtime

_UNAUTHENTICATED = 16
_RESOURCE_EXHAUSTED = 8
_COMPACTED = "compacted"
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class EtcdMetadata(NamedTuple):
    """What a `PlacementService` of several needs; `close` comes after the service's."""

    coordinator: EtcdCoordinator
    store: GuardedStore
    election: LeaseElection

    @classmethod
    def open(
        cls, runtime: Runtime, settings: PlacementSettings, *, name: str, password: str = ""
    ) -> EtcdMetadata:
        """`password`: what the setting of that name refers to. ConfigError for bad settings."""
        coordinator = EtcdCoordinator(settings.etcd, password=password)
        election = LeaseElection(runtime, coordinator, settings, name=name)
        return cls(coordinator, GuardedStore(runtime, coordinator, election), election)

    async def close(self) -> None:
        await self.coordinator.close()


class EtcdCoordinator:
    def __init__(self, settings: EtcdSettings, *, password: str = "") -> None:
        if not settings.endpoints:
            raise ConfigError("advanced.placement.etcd.endpoints: no etcd server is given")
        self._settings = settings
        self._password = password
        self._prefix = settings.prefix.encode()
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._first = 0  # the endpoint that answered last
        self._client = httpx.AsyncClient(
            timeout=settings.timeout_ms / 1000,
            verify=_tls(settings),
            trust_env=False,  # a proxy for the web is none for the cluster
            limits=httpx.Limits(max_connections=32),
        )

    async def close(self) -> None:
        await self._client.aclose()

    # Keys

    async def read(self, key: str) -> KeyValue | None:
        answer = await self._call("kv/range", {"key": self._key(key)})
        found = self._entries(answer)
        return found[0] if found else None

    async def scan(self, prefix: str) -> Sequence[KeyValue]:
        while True:
            try:
                return await self._scan(prefix)
            except RefusedError as error:
                if _COMPACTED not in error.message:
                    raise  # otherwise: our moment is history, take a new one

    async def _scan(self, prefix: str) -> Sequence[KeyValue]:
        """Page by page, all as of the revision of the first."""
        start = self._prefix + prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        revision = 0
        entries: list[KeyValue] = []
        while True:
            answer = await self._call(
                "kv/range",
                {
                    "key": _encode(start),
                    "range_end": _encode(end),
                    "limit": str(self._settings.page_keys),
                    "revision": str(revision),
                },
            )
            page = self._entries(answer)
            entries.extend(page)
            revision = revision or _revision(answer)
            if not answer.get("more") or not page:
                return entries
            start = self._prefix + page[-1].key.encode() + b"\0"

    async def write(self, transaction: Transaction) -> Outcome:
        lease = {"lease": str(transaction.lease)} if transaction.lease else {}
        puts = [
            {"request_put": {"key": self._key(key), "value": _encode(value), **lease}}
            for key, value in transaction.puts.items()
        ]
        removes = [{"request_delete_range": {"key": self._key(k)}} for k in transaction.removes]
        answer = await self._call(
            "kv/txn",
            {
                "compare": [self._compare(condition) for condition in transaction.conditions],
                "success": puts + removes,
            },
            repeatable=False,
        )
        return Outcome(bool(answer.get("succeeded")), _revision(answer))

    def _compare(self, condition: Condition) -> dict[str, str]:
        compare = {"key": self._key(condition.key), "result": "EQUAL"}
        if isinstance(condition, CreatedAt):
            return {**compare, "target": "CREATE", "create_revision": str(condition.revision)}
        return {**compare, "target": "VALUE", "value": _encode(condition.value)}

    def _key(self, key: str) -> str:
        return _encode(self._prefix + key.encode())

    def _entries(self, answer: Mapping[str, Any]) -> list[KeyValue]:
        return [
            KeyValue(
                b64decode(found["key"])[len(self._prefix) :].decode(),
                b64decode(found.get("value", "")),
                int(found["create_revision"]),
            )
            for found in answer.get("kvs", ())
        ]

    # Leases

    async def grant(self, ttl: float) -> tuple[int, float]:
        answer = await self._call("lease/grant", {"TTL": str(max(1, round(ttl)))})
        return int(answer["ID"]), float(answer["TTL"])

    async def keep_alive(self, lease: int) -> float:
        answer = await self._call("lease/keepalive", {"ID": str(lease)})
        return float(answer.get("result", {}).get("TTL", 0))

    async def revoke(self, lease: int) -> None:
        await self._call("lease/revoke", {"ID": str(lease)})

    # Calls

    async def _call(
        self, path: str, body: Mapping[str, Any], *, repeatable: bool = True
    ) -> dict[str, Any]:
        """At the server that answered last, then at the others."""
        endpoints = self._settings.endpoints
        error: UnavailableError | None = None
        for _ in endpoints:
            endpoint = endpoints[self._first % len(endpoints)]
            try:
                return await self._ask(endpoint, path, body)
            except RefusedError:
                raise
            except UnavailableError as failed:
                error = failed
                self._first += 1
                if not (repeatable or failed.data.get("refused")):
                    break
        assert error is not None  # there is one endpoint at least
        raise error

    async def _ask(self, endpoint: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._settings.username and not self._token:
            await self._authenticate(endpoint, "")
        token = self._token
        try:
            return await self._post(endpoint, path, body, token)
        except RefusedError as error:
            if not self._settings.username or error.data.get("code") != _UNAUTHENTICATED:
                raise
        await self._authenticate(endpoint, token)  # tokens end, also with a restart of the server
        return await self._post(endpoint, path, body, self._token)

    async def _authenticate(self, endpoint: str, old: str) -> None:
        async with self._authenticating:
            if self._token != old:
                return  # somebody else was first
            body = {"name": self._settings.username, "password": self._password}
            self._token = (await self._post(endpoint, "auth/authenticate", body, ""))["token"]

    async def _post(
        self, endpoint: str, path: str, body: Mapping[str, Any], token: str
    ) -> dict[str, Any]:
        headers = {"Authorization": token} if token else {}
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):  # all of it together
                answer = await self._client.post(
                    f"{endpoint.rstrip('/')}/v3/{path}", json=body, headers=headers
                )
            found = answer.json()
        except _NEVER_SENT as error:
            raise UnavailableError(f"etcd: {error}", endpoint=endpoint, refused=True) from error
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            raise UnavailableError(f"etcd: {error!r}", endpoint=endpoint) from error
        if answer.is_success and isinstance(found, dict) and "error" not in found:
            return found
        raise _error_of(found, endpoint, answer.status_code)


def _error_of(found: object, endpoint: str, status: int) -> UnavailableError | DiskFullError:
    detail = found if isinstance(found, dict) else {}
    inner = detail.get("error")
    if isinstance(inner, dict):  # of a stream, as keep-alive is one
        detail = inner
    code = detail.get("code", detail.get("grpc_code", 0))
    message = str(detail.get("message") or detail.get("error") or f"status {status}")
    if code == _RESOURCE_EXHAUSTED and "space exceeded" in message:
        return DiskFullError(f"etcd: {message}", endpoint=endpoint)
    if code in _NOTHING_DONE:
        return RefusedError(f"etcd: {message}", endpoint=endpoint, code=code)
    return UnavailableError(f"etcd: {message}", endpoint=endpoint, code=code)


_NOTHING_DONE = frozenset({3, 5, 7, 8, 9, 11, 12, _UNAUTHENTICATED})
"""gRPC codes of requests that were looked at and refused. Others (no leader, timeouts) leave it
open whether the request still happens."""


def _tls(settings: EtcdSettings) -> ssl.SSLContext | bool:
    if not any(endpoint.startswith("https:") for endpoint in settings.endpoints):
        return False
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"placement.etcd: {error}") from error
    return context


def _encode(value: bytes) -> str:
    return b64encode(value).decode()


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])
