"""One connection to the broker for one command: the options that say where, and the connection.

An option wins over its environment variable, that over the profile, that over what
`headrace up --dev` serves.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.cli import profiles
from headrace.cli.declare import Decorator, option, shared_options

if TYPE_CHECKING:
    from headrace.client.connection import BrokerConnection
    from headrace.client.iggy import IggyClient
    from headrace.client.url import Identity
    from headrace.errors import HeadraceError
    from headrace.net.tls import ClientTls
    from headrace.wire.iggy.vsr.client import Conversation

T = TypeVar("T")

ADDRESS = "127.0.0.1:8090"
HTTP = "127.0.0.1:3000"
USERNAME = "iggy"
PASSWORD = "iggy"  # what `headrace up --dev` sets; any other server refuses it


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command goes, and as whom."""

    address: str = ADDRESS
    username: str = USERNAME
    password: str = PASSWORD
    token: str = ""
    http: str = HTTP
    """Of the control plane."""

    def identity(self) -> Identity:
        from headrace.client.url import Identity

        return Identity(self.username, self.password, self.token)


@dataclass(frozen=True, slots=True)
class Tls:
    """What the command line said about TLS."""

    wanted: bool = False
    ca: str = ""
    server_name: str = ""
    insecure: bool = False


TARGET: ContextVar[Target] = ContextVar("target", default=Target())  # noqa: B039  # frozen
TLS: ContextVar[Tls] = ContextVar("tls", default=Tls())  # noqa: B039  # frozen

TLS_OPTIONS: dict[str, Decorator] = {
    "tls": option("--tls", is_flag=True, envvar="HEADRACE_TLS", help="Connect over TLS."),
    "tls_ca": option(
        "--tls-ca",
        default="",
        envvar="HEADRACE_TLS_CA",
        help="File with the authorities to trust, PEM; the system's if empty.",
    ),
    "tls_server_name": option(
        "--tls-server-name",
        default="",
        envvar="HEADRACE_TLS_SERVER_NAME",
        help="Name in the server's certificate, if not the host of the address.",
    ),
    "tls_insecure": option(
        "--tls-insecure", is_flag=True, help="Trust any certificate: development only."
    ),
}
http_option = option(
    "--http", envvar="HEADRACE_HTTP", help=f"The control plane's HTTP port. [{HTTP}]"
)
USER_OPTIONS: dict[str, Decorator] = {
    "username": option("--username", envvar="HEADRACE_USERNAME"),
    "password": option("--password", envvar="HEADRACE_PASSWORD"),
}
profile_option = option(
    "--profile",
    help="Of `headrace profile`, not the current one.",
    shell_complete=profiles.complete,
)
OPTIONS: dict[str, Decorator] = {
    "address": option(
        "--address", envvar="HEADRACE_ADDRESS", help=f"The broker's Iggy port. [{ADDRESS}]"
    ),
    **USER_OPTIONS,
    "token": option("--token", envvar="HEADRACE_TOKEN", help="Instead of user and password."),
    "profile": profile_option,
    **TLS_OPTIONS,
}
CONTROL_OPTIONS: dict[str, Decorator] = {
    "http": http_option,
    **USER_OPTIONS,
    "profile": profile_option,
    **TLS_OPTIONS,
}


@contextmanager
def chosen(given: dict[str, Any]) -> Iterator[None]:
    """The server that these values of options name, for as long as this is entered."""
    target, tls = resolve({"address": None, "token": None, "http": None, **given})
    tokens = TARGET.set(target), TLS.set(tls)
    try:
        yield
    finally:
        TARGET.reset(tokens[0])
        TLS.reset(tokens[1])


@contextmanager
def chosen_tls(given: dict[str, Any]) -> Iterator[None]:
    wanted, ca, name, insecure = (given[option] for option in TLS_OPTIONS)
    token = TLS.set(Tls(wanted or bool(ca) or insecure, ca, name, insecure))
    try:
        yield
    finally:
        TLS.reset(token)


# What gives a command the options that say which broker; `with_broker` looks at them.
connects = shared_options(OPTIONS, chosen)
# What gives a command the options that say which control plane; `control_api` looks at them.
controls = shared_options(CONTROL_OPTIONS, chosen)
# What gives a command the TLS options alone.
takes_tls = shared_options(TLS_OPTIONS, chosen_tls)


def resolve(given: dict[str, Any]) -> tuple[Target, Tls]:
    """What the options say, and where they say nothing the profile."""
    profile = profiles.chosen(given["profile"])
    value = functools.partial(_value, given, profile)
    # Whoever names a user on the command line does not mean the profile's token, nor its password.
    named = given["username"] is not None or given["password"] is not None
    token = "" if named else value("token", "")
    ca = value("tls_ca", "")
    wanted = bool(given["tls"] or profile.get("tls") or ca or given["tls_insecure"])
    return (
        Target(
            value("address", ADDRESS), value("username", USERNAME),
            value("password", PASSWORD), token, value("http", HTTP),
        ),
        Tls(wanted, ca, value("tls_server_name", ""), given["tls_insecure"]),
    )  # fmt: skip


def _value(given: dict[str, Any], profile: dict[str, Any], name: str, default: str) -> str:
    if given[name]:
        return str(given[name])
    found = str(profile.get(name, ""))
    if name in ("password", "token") and found:
        from headrace.process.startup.settings import read_reference

        return read_reference(found, f"the profile's {name}")
    return found or default


def with_broker(work: Callable[[IggyClient], Awaitable[T]]) -> T:
    """Connect, log in, run `work`, close. Errors leave as HeadraceError."""
    from headrace.runtime.system import run

    async def main() -> T:
        async with await log_in() as client:
            return await work(client)

    return run(main())


async def log_in(conversation: Conversation | None = None) -> IggyClient:
    """A client of the chosen broker, logged in. Whoever asked for the client closes it."""
    from headrace.client.iggy import IggyClient
    from headrace.runtime.system import system_runtime

    target = TARGET.get()
    host, port = address_of(target)
    client = await IggyClient.connect(
        system_runtime(), host, port, tls=client_tls(), conversation=conversation
    )
    try:
        with speaking_iggy(target.address):
            await client.log_in(target.identity())
    except BaseException:
        await client.close()
        raise
    return client


def with_broker_connection(
    work: Callable[[BrokerConnection], Awaitable[T]], *, retry_seconds: float
) -> T:
    """Run `work` as `with_broker` does, over a connection that is made again when it breaks: a
    server that restarts costs a pause. The server has to be there at the beginning."""
    from headrace.client.connection import BrokerConnection
    from headrace.client.url import ServerUrl, TlsOptions
    from headrace.observability.escaping import note
    from headrace.runtime.system import run, system_runtime

    target, chosen = TARGET.get(), TLS.get()
    host, port = address_of(target)
    tls = TlsOptions(chosen.wanted, chosen.ca, chosen.server_name, chosen.insecure)
    server = ServerUrl(host, port, target.username, target.password, token=target.token, tls=tls)

    async def main() -> T:
        told: set[str] = set()

        def on_failure(error: HeadraceError) -> None:
            """Say it once for each outage."""
            if not told:
                told.add(error.message)
                note(f"{error}; trying again (Ctrl-C ends this)")

        def on_connected() -> None:
            if told:
                told.clear()
                note(f"connected to {target.address} again")

        connection = BrokerConnection(
            system_runtime(), server, retry_seconds=retry_seconds,
            on_failure=on_failure, on_connected=on_connected,
        )  # fmt: skip
        try:
            with speaking_iggy(target.address):
                await connection.connected()
            return await work(connection)
        finally:
            await connection.close()

    return run(main())


def address_of(target: Target) -> tuple[str, int]:
    from headrace.errors import ConfigError, InvalidArgumentError
    from headrace.net.addresses import parse_address

    try:
        return parse_address(target.address)
    except InvalidArgumentError as error:
        raise ConfigError(
            f"--address is HOST:PORT, as in {ADDRESS}, and not {target.address!r}: {error.message}"
        ) from error


@contextmanager
def speaking_iggy(address: str) -> Iterator[None]:
    """Explain what goes wrong in the first request of a connection: the port is a wrong one."""
    from headrace.errors import DeadlineError, RemoteProtocolError, UnavailableError
    from headrace.wire.iggy.errors import IggyError

    try:
        yield
    except IggyError:
        raise
    except UnavailableError as error:
        if error.message.startswith("cannot connect"):
            raise
        raise UnavailableError(
            f"{address} closed the connection at the login: it is not the Iggy port, or takes TLS "
            "only"
        ) from error
    except DeadlineError as error:
        raise DeadlineError(
            f"{address} took the connection and did not answer the login: it is busy, or it is not "
            "the Iggy port"
        ) from error
    except RemoteProtocolError as error:
        raise UnavailableError(f"what listens on {address} is not the Iggy port") from error


def client_tls() -> ClientTls | None:
    """What the options of the running command ask for."""
    from headrace.client.url import TlsOptions

    chosen = TLS.get()
    return TlsOptions(chosen.wanted, chosen.ca, chosen.server_name, chosen.insecure).client()
