"""Logging set-up: one line per event, fields instead of prose, as text or JSON lines.

Loggers are named after their modules (`log = get_logger(__name__)`) and hand their events to the
standard library's logging, so that uvicorn's and asyncio's own records come out in the same form.
Nothing is configured at import: a program that embeds headrace keeps its own handlers.

Three rules hold whatever a caller passes: a field whose name speaks of a secret is not shown, of
bytes only the length is, because bytes in this project are somebody's payload, and no value ends
its line or speaks to the terminal.

structlog is imported with the first event: it costs 60 ms, and most of Spark's workers say nothing.
`REQUEST_ID` says deep inside which request is being served; setting it is one assignment, and it
becomes text only in a log line. `RecentLines` keeps the last lines for whoever asks the server.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from functools import cached_property, partial
from io import StringIO
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from headrace.observability import tracing
from headrace.observability.escaping import LINES, escape

if TYPE_CHECKING:
    import structlog

REQUEST_ID: ContextVar[tuple[int | str, int] | None] = ContextVar("request_id", default=None)
"""Who asked (the broker's client id, or a peer's address), and the number of the request."""


def request_text() -> str:
    """The request as logs show it, `client-number`; empty outside of a request."""
    request = REQUEST_ID.get()
    if request is None:
        return ""
    who, number = request
    return f"{who:08x}-{number}" if isinstance(who, int) else f"{who}-{number}"


Format = Literal["text", "json"]

# By these a container hears how to log and where its spans go.
LOG_FORMAT_VARIABLE = "HEADRACE_LOG_FORMAT"
TRACES_VARIABLE = "HEADRACE_TRACES_ENDPOINT"
TRACES_RATIO_VARIABLE = "HEADRACE_TRACES_RATIO"
BYTES_MAX = 1 << 20
# Libraries that tell at INFO what only their own authors want to know.
CHATTY = ("py4j", "uvicorn", "httpx", "httpcore")
_SECRET_WORDS = ("password", "secret", "token", "credential", "authorization", "private_key")
_NOT_FIELDS = ("_record", "_from_structlog", "exc_info")
_HANDLER_NAME = "headrace"

Event = MutableMapping[str, Any]


class _Logger:
    """Stands for a logger that nobody has used yet."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(self._made, attribute)

    @cached_property
    def _made(self) -> structlog.stdlib.BoundLogger:
        return _make_logger(self._name)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger for the module `name`; `log.info("sealed", stream_id=3)`."""
    return cast("structlog.stdlib.BoundLogger", _Logger(name))


def _make_logger(name: str) -> structlog.stdlib.BoundLogger:
    import structlog

    return cast(
        structlog.stdlib.BoundLogger,
        structlog.wrap_logger(
            logging.getLogger(name),
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            # A dict, whatever the embedding program set globally.
            context_class=dict,
            # Levels may change after import, so nothing about them is frozen at first use.
            cache_logger_on_first_use=False,
        ),
    )


def configure_logging(
    *,
    format: Format = "text",
    level: str = "INFO",
    output: TextIO | None = None,
    role: str = "",
    fields: Mapping[str, object] | None = None,
) -> None:
    """Send every record of `level` and above to `output` (stderr). May be called again.

    `role` says in every JSON line which process it is of, `fields` are those of every line."""
    stream = sys.stderr if output is None else output
    handler = logging.StreamHandler(stream)
    handler.set_name(_HANDLER_NAME)
    handler.setFormatter(
        make_formatter(format, colors=stream.isatty(), role=role, fields=fields or {})
    )
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == _HANDLER_NAME]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))


def make_formatter(
    format: Format, *, colors: bool, role: str = "", fields: Mapping[str, object] | None = None
) -> logging.Formatter:
    """What turns records into lines, here and in every other handler of ours."""
    import structlog

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add_context,
        hide_secrets,
    ]
    if fields:
        shared.append(partial(_add_fields, fields))
    renderers: list[structlog.typing.Processor]
    if format == "json":
        if role:
            shared.append(partial(_add_fields, {"role": role}))
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        renderers = [
            escape_controls,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_format_traceback),
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder()],
        # The logger's name is read from the record, which remove_processors_meta then drops.
        processors=[
            *shared,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *renderers,
        ],
    )


def add_context(_logger: object, _method: str, event: Event) -> Event:
    """Name the request and the span in which the event happened, if there are any."""
    request = request_text()
    if request:
        event.setdefault("request", request)
    trace, span = tracing.ids()
    if trace:
        event.setdefault("trace", trace)
        event.setdefault("span", span)
    return event


def _add_fields(fields: Mapping[str, object], _logger: object, _method: str, event: Event) -> Event:
    for name, value in fields.items():
        event.setdefault(name, value)
    return event


def hide_secrets(_logger: object, _method: str, event: Event) -> Event:
    """Replace secrets and payloads among the fields of an event."""
    for name, value in event.items():
        if name not in _NOT_FIELDS:
            event[name] = _shown(name, value)
    return event


def escape_controls(_logger: object, _method: str, event: Event) -> Event:
    """One event is one line, whatever others called their things. JSON needs no help with that."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = escape(value)
    return event


def _format_traceback(output: TextIO, error: structlog.typing.ExcInfo) -> None:
    """The plain one: rich tracebacks print local variables, and those hold secrets. Indented, since
    an error's text may look like an event."""
    import structlog

    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    output.write("\n" + indent(escape(text.getvalue().strip("\n"), LINES), "    ", _always))


def _always(_line: str) -> bool:
    return True


def _shown(name: str, value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    if any(word in name.lower() for word in _SECRET_WORDS):
        return "<hidden>"
    if isinstance(value, Mapping):
        return {key: _shown(str(key), each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, each) for each in value]
    return value


class RecentLines(logging.Handler):
    """Keeps formatted lines, the newest `bytes_max` characters or so. Safe from any thread."""

    def __init__(self, *, format: Format = "text", bytes_max: int = BYTES_MAX) -> None:
        super().__init__()
        self.setFormatter(make_formatter(format, colors=False))
        self._lines: deque[str] = deque()
        self._length = 0
        self._length_max = bytes_max

    def emit(self, record: logging.LogRecord) -> None:
        # `Handler.handle` holds the lock around this.
        line = self.format(record)
        self._lines.append(line)
        self._length += len(line) + 1
        while self._length > self._length_max and len(self._lines) > 1:
            self._length -= len(self._lines.popleft()) + 1

    def text(self) -> str:
        self.acquire()
        try:
            return "".join(f"{line}\n" for line in self._lines)
        finally:
            self.release()
