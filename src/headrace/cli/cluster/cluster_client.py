"""A connection to the placement managers for one command: the options that say which, and who.

Of the local cluster or the `headrace up` in --data-dir, or of any with --placement-managers and
--secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.cli.connection import TLS_OPTIONS, chosen_tls, client_tls
from headrace.cli.declare import Decorator, option, shared_options
from headrace.cli.server import role_options as o

if TYPE_CHECKING:
    from headrace.sbp_client.client import SbpClient

T = TypeVar("T")

DATA_DIR = "headrace-cluster"
UP_ADDRESS = "127.0.0.1:12378"  # of `headrace up`, unless told otherwise

OPTIONS: dict[str, Decorator] = {
    "data_dir": option(
        "--data-dir", default=DATA_DIR, help="Of a local cluster, or of `headrace up`."
    ),
    "placement_managers": o.placement_managers_option,
    "secret": o.secret_option,
    **TLS_OPTIONS,
}


@dataclass(frozen=True, slots=True)
class _ClusterChoice:
    data_dir: str = DATA_DIR
    placement_managers: str | None = None
    secret: str | None = None


_GIVEN: ContextVar[_ClusterChoice] = ContextVar("cluster", default=_ClusterChoice())  # noqa: B039  # frozen


@contextmanager
def _chosen(given: dict[str, Any]) -> Iterator[None]:
    tls = {name: given.pop(name) for name in TLS_OPTIONS}
    token = _GIVEN.set(_ClusterChoice(**given))
    try:
        with chosen_tls(tls):
            yield
    finally:
        _GIVEN.reset(token)


# What gives a command the options that say which cluster; `with_cluster` looks at them.
sees_cluster = shared_options(OPTIONS, _chosen)


def find_cluster(data_dir: str, managers: str | None, secret: str) -> tuple[list[str], bytes]:
    """Addresses and key. ConfigError when nothing says where the cluster is."""
    from headrace.cli.cluster.local_cluster import LocalClusterState
    from headrace.errors import ConfigError
    from headrace.process.cluster_connections import check_addresses
    from headrace.process.startup.server_note import read_note
    from headrace.process.startup.settings import read_secret

    listed = list(o.split_addresses(managers) or ())
    if not listed:
        state = LocalClusterState.load(data_dir)
        listed, secret = list(state.placement_managers), secret or state.secret
        if not listed and Path(data_dir, "secrets", "cluster").exists():
            there = read_note(data_dir)
            listed = [there.addresses["placement_manager"] if there else UP_ADDRESS]
        if not listed:
            raise ConfigError(
                f"no cluster was started in {data_dir}; name the data directory of a cluster, or "
                "of `headrace up`, with --data-dir, or give --placement-managers and --secret"
            )
    return list(check_addresses(listed)), read_secret(secret, data_dir)


def with_cluster(work: Callable[[SbpClient], Awaitable[T]]) -> T:
    from headrace.errors import UnavailableError
    from headrace.process.cluster_connections import node_connect, placement_links
    from headrace.runtime.system import run, system_runtime
    from headrace.sbp_client.client import SbpClient

    given = _GIVEN.get()
    managers, key = find_cluster(given.data_dir, given.placement_managers, given.secret or "")
    tls = client_tls()

    async def main() -> T:
        runtime = system_runtime()
        client = SbpClient(
            runtime,
            placement=placement_links(runtime, managers, key, "cli", tls=tls),
            node=node_connect(runtime, key, "cli", tls=tls),
            client_id="cli",
        )
        try:
            return await work(client)
        except UnavailableError as error:
            raise UnavailableError(
                f"{error}; is the cluster running? --data-dir or --placement-managers say where"
            ) from error
        finally:
            await client.close()

    return run(main())
