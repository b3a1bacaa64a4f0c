"""Log levels that somebody sets while an application runs, by logger name.

The names are Python's in the container's process; `root` is the root logger.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from headrace.errors import InvalidArgumentError, TooLargeError

LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")
LOGGERS_MAX = 1_000
NAME_CHARACTERS_MAX = 200
_OFF = logging.CRITICAL + 10
_PYTHON = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": _OFF,
}


def check_levels(levels: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """In capitals. InvalidArgumentError for what is no level, TooLargeError for too many."""
    checked = {name: level.upper() for name, level in levels.items()}
    for name, level in checked.items():
        if level not in LEVELS:
            raise InvalidArgumentError(f"a log level is one of {', '.join(LEVELS)}", level=level)
        if len(name) > NAME_CHARACTERS_MAX:
            raise InvalidArgumentError(f"a logger's name has at most {NAME_CHARACTERS_MAX} letters")
    if len(before.keys() | checked.keys()) > LOGGERS_MAX:
        raise TooLargeError("too many loggers", most=LOGGERS_MAX)
    return checked


def set_python_levels(levels: Mapping[str, str]) -> None:
    """In this process; levels of other makes are left alone."""
    for name, level in levels.items():
        if level in _PYTHON:
            logging.getLogger("" if name == "root" else name).setLevel(_PYTHON[level])
