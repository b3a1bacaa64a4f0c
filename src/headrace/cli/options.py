"""Options that many commands share.

A question before something is lost, where somebody is there to answer it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from headrace.cli import completion
from headrace.observability.escaping import LINES, escape

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
TopicName = Annotated[str, typer.Argument(metavar="STREAM/TOPIC", autocompletion=completion.topics)]

HTTP = "127.0.0.1:3000"
Http = Annotated[
    str | None,
    typer.Option("--http", envvar="HEADRACE_HTTP", help=f"The control plane's HTTP port. [{HTTP}]"),
]
USERNAME = "iggy"
PASSWORD = "iggy"  # what `headrace up --dev` sets; any other server refuses it


@dataclass(frozen=True, slots=True)
class Tls:
    """What the command line said about TLS."""

    wanted: bool = False
    ca: str = ""
    server_name: str = ""
    insecure: bool = False


TLS: ContextVar[Tls] = ContextVar("tls", default=Tls())  # noqa: B039  # frozen

TLS_OPTIONS: dict[str, Any] = {
    "tls": Annotated[bool, typer.Option("--tls", envvar="HEADRACE_TLS", help="Connect over TLS.")],
    "tls_ca": Annotated[
        str,
        typer.Option(
            "--tls-ca",
            envvar="HEADRACE_TLS_CA",
            help="File with the authorities to trust, PEM; the system's if empty.",
        ),
    ],
    "tls_server_name": Annotated[
        str,
        typer.Option(
            "--tls-server-name",
            envvar="HEADRACE_TLS_SERVER_NAME",
            help="Name in the server's certificate, if not the host of the address.",
        ),
    ],
    "tls_insecure": Annotated[
        bool, typer.Option("--tls-insecure", help="Trust any certificate: development only.")
    ],
}
TLS_DEFAULTS = {"tls": False, "tls_ca": "", "tls_server_name": "", "tls_insecure": False}


def takes_tls(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the TLS options; what it connects with looks at `TLS`."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        wanted, ca, name, insecure = (arguments.pop(option) for option in TLS_OPTIONS)
        token = TLS.set(Tls(wanted or bool(ca) or insecure, ca, name, insecure))
        try:
            command(**arguments)
        finally:
            TLS.reset(token)

    return with_options(run, command, TLS_OPTIONS, TLS_DEFAULTS)


def with_options(
    run: Callable[..., None],
    command: Callable[..., None],
    options: dict[str, Any],
    defaults: dict[str, Any],
) -> Callable[..., None]:
    """`run` with the parameters of `command` and these options, as typer reads them."""
    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation
        )
        for name, annotation in options.items()
    ]
    whole = signature.replace(parameters=[*signature.parameters.values(), *added])
    run.__signature__ = whole  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = {each.name: each.annotation for each in whole.parameters.values()}
    return run


def split_topic(name: str) -> tuple[str, str]:
    stream, slash, topic = name.partition("/")
    if not slash or not stream or not topic:
        raise typer.BadParameter(f"{name!r} is not of the form STREAM/TOPIC")
    return stream, topic


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


def confirm(question: str | Callable[[], str], *, yes: bool) -> None:
    """Ends the command unless it is answered with yes. A script is not asked: it has no terminal.

    A question that takes a look at the server is a function, called only when it is asked.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    text = question if isinstance(question, str) else question()
    typer.confirm(escape(text, LINES), abort=True, err=True)
