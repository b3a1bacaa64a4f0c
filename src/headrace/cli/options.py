"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Address = Annotated[
    str,
    typer.Option("--address", envvar="HEADRACE_ADDRESS", help="The broker's Iggy port."),
]
Http = Annotated[
    str,
    typer.Option("--http", envvar="HEADRACE_HTTP", help="The control plane's HTTP port."),
]
Username = Annotated[str, typer.Option("--username", envvar="HEADRACE_USERNAME")]
Password = Annotated[
    str, typer.Option("--password", envvar="HEADRACE_PASSWORD", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
TopicName = Annotated[str, typer.Argument(metavar="STREAM/TOPIC")]

ADDRESS = "127.0.0.1:8090"
HTTP = "127.0.0.1:3000"
USERNAME = "iggy"
PASSWORD = "iggy"  # what `headrace up --dev` sets; any other server refuses it


def split_topic(name: str) -> tuple[str, str]:
    stream, slash, topic = name.partition("/")
    if not slash or not stream or not topic:
        raise typer.BadParameter(f"{name!r} is not of the form STREAM/TOPIC")
    return stream, topic
