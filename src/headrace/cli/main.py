"""The command line: noun then verb. A command is imported when it is called (`tree.py`), and what
is heavy by the code of the command that needs it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.cli.tree import HELP_COLUMNS_MAX, Tree

app = typer.Typer(
    name="headrace",
    cls=Tree,
    help="A durable streaming log that Apache Iggy clients speak to, with PySpark pipelines on it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": HELP_COLUMNS_MAX,
    },
)


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


def main() -> None:
    """Entry point. Exit 0 for success, 1 when the work failed, 2 for usage or configuration, 130
    after Ctrl-C."""
    from headrace.errors import HeadraceError

    try:
        app()
    except HeadraceError as error:
        from headrace.cli.advice import report
        from headrace.observability.escaping import LINES, escape

        text, status = report(error, as_json="--json" in sys.argv)
        print(escape(text, LINES), file=sys.stderr)
        sys.exit(status)
    except OSError as error:
        if error.filename is None:
            raise  # nobody's file: a mistake of ours
        reason = (error.strerror or str(error)).lower()
        print(f"headrace: {error.filename}: {reason}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
