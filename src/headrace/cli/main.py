"""The command line: noun then verb. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from copy import copy
from typing import Annotated

import typer

from headrace.cli import (
    backups,
    bench,
    clients,
    cluster,
    consume,
    dead_letters,
    decode,
    demo,
    doctor,
    exporting,
    groups,
    importing,
    observability,
    partitions,
    pipeline_change,
    pipeline_inspect,
    pipelines,
    produce,
    profiles,
    ranges,
    replay,
    roles,
    spark_conf,
    streams,
    top,
    topics,
    up,
    users,
    wireshark,
)

app = typer.Typer(
    name="headrace",
    help="A durable streaming log that Apache Iggy clients speak to, with PySpark pipelines on it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("replay")(replay.replay)
app.command("export")(exporting.export)
app.command("decode")(decode.decode)
app.command("backup")(backups.backup)
app.command("restore")(backups.restore)
app.command("verify")(backups.verify)
app.command("upgrade")(backups.upgrade)
app.command("top")(top.top)
app.command("bench")(bench.bench)
app.command("placement-manager")(roles.placement_manager)
app.command("data-node")(roles.data_node)
app.command("broker")(roles.broker)
app.command("controller")(roles.controller)
app.command("spark-conf")(spark_conf.spark_conf)
app.add_typer(cluster.app, name="cluster")
app.add_typer(ranges.nodes, name="node")
app.add_typer(ranges.app, name="range")
app.add_typer(streams.app, name="stream")
app.add_typer(topics.app, name="topic")
app.add_typer(partitions.app, name="partition")
app.add_typer(partitions.segments, name="segment")
app.add_typer(groups.app, name="group")
app.add_typer(groups.offsets, name="offset")
app.add_typer(importing.app, name="import")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(users.app, name="user")
app.add_typer(users.permissions, name="permission")
app.add_typer(users.tokens, name="token")
app.add_typer(clients.app, name="client")
app.add_typer(clients.server, name="server")
app.add_typer(profiles.app, name="profile")
app.add_typer(wireshark.app, name="wireshark")
app.add_typer(observability.app, name="observability")
pipeline_change.add_to(pipelines.app)
app.add_typer(pipelines.app, name="pipeline")
app.add_typer(pipeline_inspect.containers, name="container")
app.add_typer(pipeline_inspect.operators, name="operator")
app.add_typer(pipeline_inspect.windows, name="window")
app.add_typer(pipeline_inspect.events, name="event")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Set nothing up: each command does what it needs."""


def narrowed(wanted: str) -> typer.Typer:
    """The noun or command of that name alone: reading the signatures of all takes 0.1 s."""
    groups = [each for each in app.registered_groups if each.name == wanted]
    commands = [each for each in app.registered_commands if each.name == wanted]
    if not groups and not commands:
        return app
    one = copy(app)
    one.registered_groups, one.registered_commands = groups, commands
    return one


def main() -> None:
    """Entry point. Exit 0 for success, 1 when the work failed, 2 for usage or configuration."""
    from headrace.errors import ConfigError, HeadraceError

    try:
        narrowed(sys.argv[1] if len(sys.argv) > 1 else "")()
    except ConfigError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(2)
    except HeadraceError as error:
        from headrace.cli.advice import advice

        print(f"headrace: {error}", file=sys.stderr)
        hint = advice(error)
        if hint:
            print(f"  {hint}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of a pipe (head, less) went away: that is its right.
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
