"""Small generated files (the Java shim, Spark's logging configuration) in the user's cache folder.

A file is named after its content, so two versions of Headrace never overwrite each other's, and it
appears by rename, so that a process that starts at the same moment never reads half of it.
"""

from __future__ import annotations

import hashlib
import os
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
