"""The program `headrace`: its options, its errors and its exit codes.

A command is imported when it is called (`command_table.py`), and what is heavy is imported by the
code of the command that needs it. `--install-completion` and `--show-completion` give a shell the
script it completes with. The script is click's; it asks `headrace` itself, so names that the server
has complete too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
from click.exceptions import Exit

from headrace.cli.command_table import CommandTree

PROGRAM = "headrace"


def show_completion(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(_script(ctx, _current_shell()))
        ctx.exit()


def install_completion(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    shell = _current_shell()
    script = _script(ctx, shell)
    path = _INSTALL[shell](script)
    click.echo(f"{shell} completion installed in {path}")
    click.echo("Completion will take effect once you restart the terminal")
    ctx.exit()


def _script(ctx: click.Context, shell: str) -> str:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None or shell not in _INSTALL:
        click.echo(f"Shell {shell} is not supported.", err=True)
        raise Exit(1)
    return kind(ctx.command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()


def _current_shell() -> str:
    """The shell that started this process, or else the person's own."""
    import psutil

    try:
        names = [each.name() for each in psutil.Process().parents()]
    except psutil.Error:
        names = []
    own = Path(os.environ.get("SHELL", "")).name
    return next((name for name in names if name in _INSTALL), own)


def _install_bash(script: str) -> Path:
    path = _write(Path.home() / ".bash_completions" / f"{PROGRAM}.sh", script)
    _add_line(Path.home() / ".bashrc", f"source '{path}'")
    return path


def _install_zsh(script: str) -> Path:
    settings = Path.home() / ".zshrc"
    _add_line(settings, "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    if "zstyle" not in settings.read_text():
        _add_line(settings, "zstyle ':completion:*' menu select")
    return _write(Path.home() / ".zfunc" / f"_{PROGRAM}", script)


def _install_fish(script: str) -> Path:
    return _write(Path.home() / ".config/fish/completions" / f"{PROGRAM}.fish", script)


def _write(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    return path


def _add_line(file: Path, line: str) -> None:
    """Once, however often this is called."""
    text = file.read_text() if file.is_file() else ""
    if line not in text:
        file.write_text(f"{text.rstrip()}\n{line}\n".lstrip("\n"))


_INSTALL: dict[str, Callable[[str], Path]] = {
    "bash": _install_bash,
    "zsh": _install_zsh,
    "fish": _install_fish,
}


HELP_COLUMNS_MAX = 100


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"headrace {version('headrace')}")
        ctx.exit()


@click.group(
    "headrace",
    cls=CommandTree,
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
