"""How the roles of a cluster reach each other over TCP, and what they say about themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.errors import ConfigError, InvalidArgumentError, StateError
from headrace.net.addresses import parse_address
from headrace.net.credentials import node_credential
from headrace.net.tls import ClientTls
from headrace.observability.logging import get_logger
from headrace.runtime import Runtime
from headrace.sbp_client.channels import Connect, PlacementChannel, tcp_connect
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp.messages import ClientRole

log = get_logger(__name__)

WILDCARDS = ("0.0.0.0", "::")


def node_connect(
    runtime: Runtime,
    secret: bytes,
    client_id: str,
    role: ClientRole = ClientRole.CUSTOMER,
    *,
    tls: ClientTls | None = None,
) -> Callable[[str], Connect]:
    """Connections, by address, that prove to hold the cluster's secret."""
    credential = node_credential(secret)

    def connect_to(address: str) -> Connect:
        return tcp_connect(
            runtime, address, client_id=client_id, role=role, credential=credential, tls=tls
        )

    return connect_to


def placement_links(
    runtime: Runtime,
    addresses: Sequence[str],
    secret: bytes,
    client_id: str,
    role: ClientRole = ClientRole.CUSTOMER,
    *,
    tls: ClientTls | None = None,
) -> PlacementChannel:
    return PlacementChannel(
        check_addresses(addresses), node_connect(runtime, secret, client_id, role, tls=tls)
    )


async def reach(client: SbpClient, *, wait: bool) -> None:
    """Ask the placement managers something, so that a wrong secret is told at once. While none of
    them leads or answers there is nothing wrong with us: with `wait` it asks until one does."""
    while True:
        try:
            await client.describe_cluster()
            return
        except StateError as error:
            log.warning("no placement manager answers yet", reason=str(error))
            if not wait:
                return


def check_addresses(addresses: Sequence[str]) -> Sequence[str]:
    if not addresses:
        raise ConfigError(
            "where are the placement managers? Give --placement-managers host:port,host:port"
        )
    for address in addresses:
        try:
            parse_address(address)
        except InvalidArgumentError as error:
            raise ConfigError(f"placement managers: {error}") from error
    return addresses


def check_advertised(host: str, advertise: str) -> None:
    """Peers are told where we listen; a wildcard is not a place they could connect to."""
    if host in WILDCARDS and not advertise:
        raise ConfigError(
            f"{host} means every interface of this machine, not an address others can reach; "
            "say which with --advertise HOST or --advertise HOST:PORT"
        )
