"""Options of topics (dialect C): which are known, what they do, what is in effect without them.

Known options take effect and are shown; others are kept as they were given, shown, and do nothing.
Classic requests have fields instead of the first three; what was set either way is shown in both.

`durability` is `replicated`, an answer once the replicas have the message, or `persisted`, once it
is on their disks. The broker's own setting is the least that is promised: under `synced` both are
on disk, under `written` only `persisted` is. Stored offsets are always on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.catalogue.resources import NEVER, Topic
from headrace.config.broker import BrokerSettings
from headrace.wire.iggy.messages.topics import Compression
from headrace.wire.iggy.primitives import Options, decode_options, encode_options
from headrace.wire.iggy.refusals import InvalidOptionError, UnsupportedOptionError
from headrace.wire.iggy.user_headers import HeaderKind, UserHeader
from headrace.wire.sbp.messages import Durability

REPLICATED, PERSISTED = "replicated", "persisted"
_COMPRESSIONS = {"none": Compression.NONE, "gzip": Compression.GZIP}
_SEGMENT_BYTES = 1 << 30  # what data nodes roll at, unless they are set otherwise
_WIDTHS = {HeaderKind.UINT32: 4, HeaderKind.UINT64: 8}


@dataclass(frozen=True, slots=True)
class KnownOption:
    key: str
    kind: HeaderKind
    default: str
    description: str
    check: Callable[[str], bool] = lambda _: True
    can_change: bool = False

    @property
    def default_value(self) -> bytes:
        return _encode(self.kind, self.default)


def _is_durability(value: str) -> bool:
    return value in (REPLICATED, PERSISTED)


TOPIC_OPTIONS = (
    KnownOption("compression_algorithm", HeaderKind.STRING, "none",
          "How clients compress payloads: none or gzip.", lambda v: v in _COMPRESSIONS, True),
    KnownOption("message_expiry", HeaderKind.UINT64, str(NEVER),
          "Microseconds after which messages may go; 0 = the server's default, all ones = never.",
          can_change=True),
    KnownOption("max_topic_size", HeaderKind.UINT64, str(NEVER),
          "Bytes above which the oldest messages go; 0 = the server's default, all ones = never.",
          can_change=True),
    KnownOption("segment_size", HeaderKind.UINT64, str(_SEGMENT_BYTES),
          "Kept and shown; data nodes roll segments by their own setting."),
    KnownOption("messages_required_to_save", HeaderKind.UINT32, "1",
          "Kept and shown; every request is saved before it is answered."),
    KnownOption("size_of_messages_required_to_save", HeaderKind.UINT64, "0",
          "Kept and shown; every request is saved before it is answered."),
    KnownOption("preallocate_segments", HeaderKind.BOOL, "false",
          "Kept and shown; segments grow by doubling."),
    KnownOption("durability", HeaderKind.STRING, REPLICATED,
          "What an answered SEND promises: replicated, or persisted on disk.", _is_durability),
    KnownOption("consumer_offset_durability", HeaderKind.STRING, REPLICATED,
          "The same for stored offsets, which are always on disk here.", _is_durability),
)  # fmt: skip
_KNOWN = {known.key: known for known in TOPIC_OPTIONS}


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """The options of a request, and what they say about fields that topics have; None = nothing."""

    options: Options = ()
    """Known ones of their own kind, whichever they came in."""
    compression: int | None = None
    expiry: int | None = None
    max_size: int | None = None


def read_options(options: Options, *, creating: bool) -> GivenOptions:
    """Check the known ones: InvalidOptionError, or UnsupportedOptionError for what stays."""
    if not options:
        return GivenOptions()
    values: dict[str, str] = {}
    kept: list[UserHeader] = []
    for option in options:
        known = _KNOWN.get(option.key.decode(errors="replace"))
        if known is None:
            kept.append(option)
            continue
        if not creating and not known.can_change:
            raise UnsupportedOptionError("it can not change", option=known.key)
        value = values[known.key] = _value(known, option)
        kept.append(UserHeader(option.key, _encode(known.kind, value), known.kind))
    compression = values.get("compression_algorithm")
    return GivenOptions(
        tuple(kept),
        None if compression is None else int(_COMPRESSIONS[compression]),
        _number(values.get("message_expiry")),
        _number(values.get("max_topic_size")),
    )


def _value(known: KnownOption, option: UserHeader) -> str:
    """As text; a client may send any known one as text."""
    found = option.python_value()
    if option.kind is not known.kind and option.kind is not HeaderKind.STRING:
        raise InvalidOptionError(option=known.key, kind=option.kind.name)
    value = str(found).lower()
    if not known.check(value) or not _fits(known.kind, value):
        raise InvalidOptionError(option=known.key, value=value)
    return value


def _fits(kind: HeaderKind, value: str) -> bool:
    if kind is HeaderKind.BOOL:
        return value in ("true", "false")
    if kind is HeaderKind.STRING:
        return True
    return value.isascii() and value.isdigit() and int(value) < 1 << 8 * _WIDTHS[kind]


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def keep_options(options: Options, before: bytes = b"") -> bytes:
    """What the catalogue holds: those given now, and of those given before the others."""
    merged = {option.key: option for option in decode_options(before)}
    merged |= {option.key: option for option in options}
    return encode_options(tuple(merged.values()))


def durability_of(topic: Topic, settings: BrokerSettings) -> Durability:
    if settings.durability == "synced":
        return Durability.SYNCED
    for option in decode_options(topic.options):
        if option.key == b"durability" and option.value == PERSISTED.encode():
            return Durability.SYNCED
    return Durability.WRITTEN


def view_options(topic: Topic, *, expiry: int, max_size: int) -> tuple[Options, Options]:
    """(explicit, derived): as they were given, and what holds for the other known ones."""
    explicit = decode_options(topic.options)
    given = {option.key for option in explicit}
    effective: dict[str, str] = {known.key: known.default for known in TOPIC_OPTIONS}
    effective["compression_algorithm"] = Compression(topic.compression).name.lower()
    effective["message_expiry"], effective["max_topic_size"] = str(expiry), str(max_size)
    derived = [
        UserHeader(known.key.encode(), _encode(known.kind, effective[known.key]), known.kind)
        for known in TOPIC_OPTIONS
        if known.key.encode() not in given
    ]
    return explicit, tuple(derived)


def _encode(kind: HeaderKind, value: str) -> bytes:
    if kind is HeaderKind.STRING:
        return value.encode()
    if kind is HeaderKind.BOOL:
        return bytes((value == "true",))
    return int(value).to_bytes(_WIDTHS[kind], "little")
