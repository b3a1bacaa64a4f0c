"""headrace wireshark: the dissectors for SBP, Iggy and the umbilical, into Wireshark's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.cli.declare import Group, json_option, option

FOLDER = "headrace"
"""Inside the folder for plugins, which Wireshark searches with all that is below it."""

app = Group("wireshark", help="Teach Wireshark and tshark the protocols of Headrace.")

_where_option = option(
    "--path", default="", help="Wireshark's folder for Lua plugins, where it cannot be asked."
)


@app.command()
@_where_option
@json_option
def install(path: str, as_json: bool) -> None:
    """Put the dissectors where Wireshark finds them; an older copy is replaced.

    Then open a capture: `tshark -i lo -Y iggy`, or Wireshark with the filter `sbp || umbilical`.
    """
    target = _plugins(path) / FOLDER
    try:
        target.mkdir(parents=True, exist_ok=True)
        for source in scripts():
            shutil.copyfile(source, target / source.name)
    except OSError as error:
        raise _unwritable(target, error) from error
    _tell(target, "installed", as_json=as_json)


@app.command()
@_where_option
@json_option
def uninstall(path: str, as_json: bool) -> None:
    """Take the dissectors away again; other plugins stay."""
    target = _plugins(path) / FOLDER
    if not any((target / source.name).exists() for source in scripts()):
        from headrace.errors import ConfigError

        raise ConfigError(f"there are no dissectors of ours in {target}; say where with --path")
    try:
        for source in scripts():
            (target / source.name).unlink(missing_ok=True)
        if not any(target.iterdir()):
            target.rmdir()
    except OSError as error:
        raise _unwritable(target, error) from error
    _tell(target, "removed", as_json=as_json)


def scripts() -> list[Path]:
    """The files that are shipped."""
    return sorted(Path(__file__).parent.glob("*.lua"))


def _plugins(given: str) -> Path:
    return Path(given).expanduser() if given else _asked() or _usual()


def _asked() -> Path | None:
    """What Wireshark itself says, which knows of its version and of how it was installed."""
    import subprocess

    for program in ("tshark", "wireshark"):
        found = shutil.which(program)
        if found is None:
            continue
        try:
            said = subprocess.run(
                [found, "-G", "folders"], capture_output=True, text=True, timeout=20, check=False
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        for line in said.splitlines():
            name, _, folder = line.partition(":")
            if name.strip() == "Personal Lua Plugins" and folder.strip():
                return Path(folder.strip())
    return None


def _usual() -> Path:
    import os
    import sys

    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", str(Path.home()))) / "Wireshark" / "plugins"
    return Path.home() / ".local" / "lib" / "wireshark" / "plugins"


def _unwritable(target: Path, error: OSError) -> Exception:
    from headrace.errors import ConfigError

    return ConfigError(f"cannot write {target}: {error.strerror}; choose another with --path")


def _tell(target: Path, what: str, *, as_json: bool) -> None:
    from headrace.cli.output import print_json

    names = [source.name for source in scripts()]
    if as_json:
        print_json({"path": str(target), what: names})
        return
    print(f"{what} {len(names)} files in {target}")
    if what == "installed":
        print("in a running Wireshark: Analyze > Reload Lua Plugins (Ctrl+Shift+L)")
