"""The dataclasses of `messages.py` to protobuf bytes and back, and the one table of calls.

A dataclass and its protobuf message have the same name and the same field names; what to do with
a field follows from its descriptor, worked out once per class:

    enum       0 (UNSPECIFIED) is None where the dataclass allows None, otherwise refused, as is any
               value this version does not know
    optional   absent is the dataclass's default; None is not sent
    repeated   a tuple
    map        a dict
    Value      the plain Python value of its kind; no kind set is None

An empty record takes two bytes on the wire and some hundred in memory. `decode` therefore counts
the records of a message, which costs nothing, before it makes objects of them.

`TABLE` has the request and response class of each method. A call names its method, protocol and
version in Hadoop's RequestHeaderProto; see `rpc.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from google.protobuf import message as protobuf
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical._generated import umbilical_pb2

M = TypeVar("M", bound=m.Message)

RECORDS_MAX = 65_536  # in all lists and maps of one message together

_ENUMS: Mapping[str, type[IntEnum]] = {
    name: getattr(m, name.rpartition(".")[2])
    for name in (
        "OperatorHeartbeat.DeployState",
        "ContainerHeartbeatResponse.ShutdownType",
        "StramToNodeRequest.RequestType",
        "OperatorDeployInfo.OperatorType",
        "Locality",
    )
}
_PACKAGE = umbilical_pb2.DESCRIPTOR.package + "."


def encode(message: m.Message) -> bytes:
    """LocalProtocolError when a value does not fit its field."""
    try:
        return to_protobuf(message).SerializeToString(deterministic=True)
    except (ValueError, TypeError, AttributeError, protobuf.EncodeError) as error:
        raise LocalProtocolError(f"{type(message).__name__} does not encode: {error}") from error


def decode(cls: type[M], data: bytes) -> M:
    """RemoteProtocolError for anything that is not a `cls`."""
    target = _protobuf_class(cls)()
    try:
        target.ParseFromString(data)
    except (protobuf.DecodeError, ValueError) as error:
        raise RemoteProtocolError(f"not a {cls.__name__}: {error}") from error
    if len(data) > RECORDS_MAX:  # a record takes a byte or more: shorter messages cannot have more
        _count_records(target, RECORDS_MAX)
    return from_protobuf(cls, target)


def _count_records(message: protobuf.Message, left: int) -> int:
    """How many more may come; each list is counted whole before anything in it is looked at."""
    nested: list[protobuf.Message] = []
    for column, value in message.ListFields():
        if column.is_repeated:
            left -= len(value)
            if left < 0:
                raise RemoteProtocolError(f"more than {RECORDS_MAX} records in a message")
        if column.message_type is None:
            continue
        if not column.is_repeated:
            nested.append(value)
        elif _map_item(column) is None:
            nested.extend(value)
        else:
            nested.extend(one for one in value.values() if isinstance(one, protobuf.Message))
    for one in nested:
        left = _count_records(one, left)
    return left


def to_protobuf(message: m.Message) -> protobuf.Message:
    target = _protobuf_class(type(message))()
    for rule in _RULES[type(message)]:
        value = getattr(message, rule.name)
        if value is not None:
            rule.write(target, value)
    return target


def from_protobuf(cls: type[M], source: protobuf.Message) -> M:
    arguments: dict[str, object] = {}
    for rule in _RULES[cls]:
        if rule.has_presence and not source.HasField(rule.name):
            continue
        value = rule.read(getattr(source, rule.name))
        if value is not None:
            arguments[rule.name] = value
        elif rule.required:
            raise RemoteProtocolError(f"{cls.__name__}.{rule.name} is missing")
    return cls(**arguments)


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    has_presence: bool
    required: bool
    read: Callable[[Any], object]
    write: Callable[[protobuf.Message, Any], None]


def _protobuf_class(cls: type[m.Message]) -> type[protobuf.Message]:
    return cast(type[protobuf.Message], getattr(umbilical_pb2, cls.__name__))


def _make_rules(cls: type[m.Message]) -> tuple[_Rule, ...]:
    descriptor = cast(Descriptor, _protobuf_class(cls).DESCRIPTOR)
    declared = {f.name: f for f in fields(cast(Any, cls))}
    if declared.keys() != set(descriptor.fields_by_name):
        raise RuntimeError(f"{cls.__name__} and umbilical.proto are out of step")
    return tuple(
        _Rule(
            name=name,
            has_presence=column.has_presence,
            required=declared[name].default is MISSING
            and declared[name].default_factory is MISSING,
            read=_reader(column),
            write=_writer(column),
        )
        for name, column in descriptor.fields_by_name.items()
    )


def _reader(column: FieldDescriptor) -> Callable[[Any], object]:
    item = _map_item(column)
    one = _reader_of_one(item or column)
    if item is not None:
        return lambda entries: {key: one(entries[key]) for key in entries}
    if column.is_repeated:
        return lambda items: tuple(one(item) for item in items)
    return one


def _reader_of_one(column: FieldDescriptor) -> Callable[[Any], object]:
    if column.enum_type is not None:
        return _enum_reader(column.enum_type.full_name.removeprefix(_PACKAGE))
    if column.message_type is None:
        return lambda value: value
    if column.message_type.name == "Value":
        return _read_value
    cls = getattr(m, column.message_type.name)
    return lambda value: from_protobuf(cls, value)


def _enum_reader(name: str) -> Callable[[int], IntEnum | None]:
    known: dict[int, IntEnum | None] = {int(member): member for member in _ENUMS[name]}
    known[0] = None

    def read(number: int) -> IntEnum | None:
        try:
            return known[number]
        except KeyError:
            raise RemoteProtocolError(f"{name} has no value {number}") from None

    return read


def _writer(column: FieldDescriptor) -> Callable[[protobuf.Message, Any], None]:
    name = column.name
    item = _map_item(column)
    one = _writer_of_one(item or column)
    if one is None:
        if item is not None:
            return lambda target, value: getattr(target, name).update(value)
        if column.is_repeated:
            return lambda target, value: getattr(target, name).extend(value)
        return lambda target, value: setattr(target, name, value)
    make = one

    def write_map(target: protobuf.Message, value: Mapping[object, object]) -> None:
        entries = getattr(target, name)
        for key, entry in value.items():
            entries[key].CopyFrom(make(entry))

    if item is not None:
        return write_map
    if column.is_repeated:
        return lambda target, value: getattr(target, name).extend([make(one) for one in value])
    return lambda target, value: getattr(target, name).CopyFrom(make(value))


def _writer_of_one(column: FieldDescriptor) -> Callable[[Any], protobuf.Message] | None:
    """How one message is made; None for what protobuf takes as it is."""
    if column.message_type is None:
        return None
    return _write_value if column.message_type.name == "Value" else to_protobuf


def _map_item(column: FieldDescriptor) -> FieldDescriptor | None:
    """The value field of a map's entries; None when the field is not a map."""
    entry = column.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    return entry.fields_by_name["value"]


_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "flag"),  # before int, which it is a kind of
    (int, "integer"),
    (float, "real"),
    (str, "text"),
    (bytes, "binary"),
)


def _read_value(source: umbilical_pb2.Value) -> m.Value:
    kind = source.WhichOneof("kind")
    if kind is None:
        return None
    value = getattr(source, kind)
    return m.Json(value) if kind == "json" else cast(m.Value, value)


def _write_value(value: m.Value) -> umbilical_pb2.Value:
    if value is None:
        return umbilical_pb2.Value()
    if isinstance(value, m.Json):
        return umbilical_pb2.Value(json=value.text)
    for kind, name in _KINDS:
        if isinstance(value, kind):
            return umbilical_pb2.Value(**{name: value})  # type: ignore[arg-type]  # name goes with kind
    raise TypeError(f"{type(value).__name__} is not a plain value")


# At import, so that a field added on one side only cannot go unnoticed.
_RULES: Mapping[type[m.Message], tuple[_Rule, ...]] = MappingProxyType(
    {cls: _make_rules(cls) for cls in m.FIELD_GROUPS.values()}
)


PROTOCOL_NAME = "com.datatorrent.stram.api.StreamingContainerUmbilicalProtocol"
PROTOCOL_VERSION = 201208081755

Q = TypeVar("Q", bound=m.Message)
R = TypeVar("R", bound=m.Message)


@dataclass(frozen=True, slots=True)
class Call(Generic[Q, R]):
    name: str
    request: type[Q]
    response: type[R]


GET_INIT_CONTEXT = Call("getInitContext", m.GetInitContextRequest, m.GetInitContextResponse)
LOG = Call("log", m.LogRequest, m.LogResponse)
REPORT_ERROR = Call("reportError", m.ReportErrorRequest, m.ReportErrorResponse)
PROCESS_HEARTBEAT = Call("processHeartbeat", m.ContainerHeartbeat, m.ContainerHeartbeatResponse)

TABLE: Mapping[str, Call[Any, Any]] = MappingProxyType(
    {call.name: call for call in (GET_INIT_CONTEXT, LOG, REPORT_ERROR, PROCESS_HEARTBEAT)}
)
