"""The command line: noun then verb. A command is imported when it is called (`tree.py`), and what
is heavy by the code of the command that needs it."""

from __future__ import annotations

import sys

import click

from headrace.cli.shell_setup import install_completion, show_completion
from headrace.cli.tree import Tree

HELP_COLUMNS_MAX = 100


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"headrace {version('headrace')}")
        ctx.exit()


@click.group(
    "headrace",
    cls=Tree,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": HELP_COLUMNS_MAX,
        "show_default": True,
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
@click.option(
    "--install-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=install_completion,
    help="Install completion for the current shell.",
)
@click.option(
    "--show-completion",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_completion,
    help="Show completion for the current shell, to copy it or customize the installation.",
)
def app() -> None:
    """A durable streaming log that Apache Iggy clients speak to, with PySpark pipelines on it."""


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
