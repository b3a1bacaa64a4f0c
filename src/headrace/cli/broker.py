"""One connection to the broker for one command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from headrace.cli.options import TLS

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.net.tls import ClientTls

T = TypeVar("T")


def with_broker(
    address: str, username: str, password: str, work: Callable[[IggyClient], Awaitable[T]]
) -> T:
    """Connect, log in, run `work`, close. Errors leave as HeadraceError."""
    from headrace.client.iggy import IggyClient
    from headrace.net.addresses import parse_address
    from headrace.runtime.system import run, system_runtime

    host, port = parse_address(address)
    tls = client_tls()

    async def main() -> T:
        async with await IggyClient.connect(system_runtime(), host, port, tls=tls) as client:
            await client.login(username, password)
            return await work(client)

    return run(main())


def client_tls() -> ClientTls | None:
    """What the options of the running command ask for."""
    from headrace.client.tls_options import TlsOptions

    chosen = TLS.get()
    return TlsOptions(chosen.wanted, chosen.ca, chosen.server_name, chosen.insecure).client()
