"""Every command of the first level: where it lives, and what `headrace --help` says of it.

A row of the table is enough to list, to complete and to suggest a command. `CommandTree` imports
the module of a command when the command is called: to import all of them took longer than
everything else that `headrace --help` does.
"""

from __future__ import annotations

import os
import select
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click

from headrace.cli.declare import Command, Group


class CommandRow(NamedTuple):
    """What is known of a command before its module is imported.

    `home` is module:attribute below `headrace.cli`: a command, or a group for a noun.
    """

    home: str
    sentence: str


SECTIONS: dict[str, dict[str, CommandRow]] = {
    "Run": {
        "up": CommandRow("server.up:up", "Run everything on this machine."),
        "down": CommandRow("server.up:down", "Stop what `headrace up` runs."),
        "demo": CommandRow("demo:demo", "Show the whole system at work, with a kill and a check."),
        "doctor": CommandRow(
            "doctor:doctor", "Look for what would keep Headrace from working here."
        ),
        "top": CommandRow("top:top", "Show rates, lag, pipelines and brokers live."),
        "bench": CommandRow("bench:bench", "Load a broker and measure."),
        "profile": CommandRow("profiles:app", "Named servers for the other commands."),
        "server": CommandRow("server.clients:server", "The broker itself."),
    },
    "Messages": {
        "produce": CommandRow("messages.produce:produce", "Send each line as a message."),
        "consume": CommandRow("messages.consume:consume", "Print messages."),
        "replay": CommandRow("messages.replay:replay", "Send a range of a topic once more."),
        "export": CommandRow("messages.exporting:export", "Write messages to a file."),
        "import": CommandRow("messages.importing:app", "Move in: topics of others, and files."),
        "dead-letters": CommandRow("pipeline.dead_letters:app", "Rows that a pipeline set aside."),
    },
    "Topics and consumers": {
        "stream": CommandRow("topics.topics:streams", "Streams: folders of topics."),
        "topic": CommandRow("topics.topics:app", "Topics: what messages are sent to."),
        "partition": CommandRow("topics.partitions:app", "Partitions of topics."),
        "segment": CommandRow("topics.partitions:segments", "Segments: the files of a partition."),
        "group": CommandRow("topics.groups:app", "Consumer groups and their lag."),
        "offset": CommandRow("topics.groups:offsets", "Stored offsets of consumers and groups."),
        "client": CommandRow("server.clients:app", "Connected clients."),
    },
    "Pipelines": {
        "pipeline": CommandRow(
            "pipeline.pipelines:app", "PySpark code that the controller supervises."
        ),
        "container": CommandRow("pipeline.inspect:containers", "Processes of a pipeline."),
        "operator": CommandRow("pipeline.inspect:operators", "Operators of a running pipeline."),
        "window": CommandRow("pipeline.inspect:windows", "Windows: how far each operator is."),
        "event": CommandRow("pipeline.inspect:events", "What happened to pipelines."),
        "spark-conf": CommandRow(
            "pipeline.plan:spark_conf", "Print the Spark settings of pipelines."
        ),
    },
    "Users": {
        "user": CommandRow("topics.users:app", "Users and what they may do."),
        "permission": CommandRow("topics.users:permissions", "What users may do, and where."),
        "token": CommandRow("topics.users:tokens", "Personal access tokens of the user you are."),
    },
    "Cluster": {
        "cluster": CommandRow("cluster:app", "Run a local cluster; look at any."),
        "node": CommandRow("cluster.ranges:nodes", "Data nodes of a cluster."),
        "range": CommandRow(
            "cluster.ranges:app", "Ranges: stretches of a log stream, with their replicas."
        ),
        "shard": CommandRow("cluster.shards:app", "Shards: which worker leads which partitions."),
        "placement-manager": CommandRow(
            "server.roles:placement_manager", "Run a placement manager."
        ),
        "data-node": CommandRow("server.roles:data_node", "Run a data node."),
        "broker": CommandRow("server.roles:broker", "Run a broker."),
        "controller": CommandRow(
            "server.roles:controller", "Run the pipeline controller and its dashboard."
        ),
    },
    "Data directories": {
        "backup": CommandRow("backup:backup", "Copy a data directory while it is in use."),
        "restore": CommandRow(
            "backup:restore", "Bring a backup back into an empty data directory."
        ),
        "verify": CommandRow("backup:verify", "Read a backup or data directory from end to end."),
        "control-log": CommandRow("server.control_logs:app", "What damage cost the control state."),
        "upgrade": CommandRow(
            "backup:upgrade", "Bring a data directory to this release's formats."
        ),
    },
    "Tools": {
        "decode": CommandRow("decode:decode", "Print frames of the three protocols as text."),
        "wireshark": CommandRow("wireshark:app", "Teach Wireshark the protocols of Headrace."),
        "observability": CommandRow(
            "server.observability:app", "Files for Grafana and Prometheus."
        ),
    },
}
COMMANDS: dict[str, CommandRow] = {
    name: row for section in SECTIONS.values() for name, row in section.items()
}


INTERRUPTED = 130


class CommandTree(Group):
    """The root of the commands. A command in it knows only its name and its sentence."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        for name, row in COMMANDS.items():
            self.commands[name] = Command(name, help=row.sentence)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if found is not None and name is not None else found, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            if not _is_unread(1):
                raise
            # The reader of a pipe (head, less) went away: that is its right.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise click.exceptions.Exit(0) from None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        column = max(map(len, COMMANDS))
        for section, rows_by_name in SECTIONS.items():
            with formatter.section(section):
                rows = [(f"{name:<{column}}", row.sentence) for name, row in rows_by_name.items()]
                formatter.write_dl(rows)


def _is_unread(descriptor: int) -> bool:
    """Whether the other end of this pipe is closed."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def load(name: str) -> click.Command:
    """Import a command of the first level, ready to be called."""
    module, _, attribute = COMMANDS[name].home.partition(":")
    found: click.Command = getattr(import_module(f"headrace.cli.{module}"), attribute)
    return found
