"""Locked requirements of a package: which file holds them, and that they are locked.

Locked means that a restart in a year installs the same bytes: every line names one version and the
hashes of its files, and none says where to download from. `pip install --require-hashes` then
checks what it gets. Pure; `environments.py` installs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from headrace.errors import InvalidArgumentError

FILES = ("requirements.lock", "requirements.txt")  # the first that a package has

_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._ -]+\])? ?==[^*\s;]+(\s*;.*)?\Z")
_FILE = re.compile(r"\./[^\s]+\.whl\Z")  # a wheel that travels in the package
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\Z")


def locked_requirements(files: Mapping[str, bytes]) -> tuple[str, bytes] | None:
    """(path, content) of a package's requirements; None when it needs none.

    InvalidArgumentError names the first line that is not locked.
    """
    path = next((name for name in FILES if name in files), None)
    if path is None:
        return None
    lines = list(_requirements(files[path].decode("utf-8", "replace")))
    for line in lines:
        _check(path, line, files)
    return (path, files[path]) if lines else None


def _requirements(text: str) -> Iterator[str]:
    """Logical lines: continued ones joined, comments and empty ones left out."""
    for line in text.replace("\\\n", " ").splitlines():
        content = re.sub(r"(^|\s)#.*", "", line).strip()
        if content:
            yield content


def _check(path: str, line: str, files: Mapping[str, bytes]) -> None:
    hashes = [word for word in line.split() if word.startswith("--hash")]
    requirement = " ".join(word for word in line.split() if not word.startswith("--hash"))
    if requirement.startswith("-") or "://" in requirement:
        fix = "take options and addresses out; pip's own settings say where to download from"
    elif _FILE.fullmatch(requirement):
        if requirement.removeprefix("./") in files:
            fix = "" if hashes else "add its --hash=sha256:..."
        else:
            fix = "there is no such file in the package"
    elif not _PINNED.fullmatch(requirement):
        fix = "name one version, like polars==1.2.3"
    else:
        fix = "" if hashes else "add its --hash=sha256:... (pip-compile --generate-hashes does)"
    if not fix and not all(_HASH.fullmatch(one) for one in hashes):
        fix = "a hash is written --hash=sha256: and 64 hexadecimal digits"
    if fix:
        raise InvalidArgumentError(f"{path} is not locked: {requirement[:100]!r}: {fix}")
