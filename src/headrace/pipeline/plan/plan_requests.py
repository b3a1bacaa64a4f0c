"""Requests that change a logical plan, in the origin's JSON. Pure: a list of them turns one plan
into another, or is refused as a whole.

    {"requestType": "RemoveOperatorRequest", "operatorName": "late"}

An operator can only be created if the deployed package declares it: a plan never brings code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from headrace.errors import InvalidArgumentError
from headrace.pipeline.plan.logical import Endpoint, LogicalPlan, Operator, Port, Stream
from headrace.wire.umbilical.messages import Json, Locality, Value

REQUESTS_MAX = 1_000
Request: TypeAlias = Mapping[str, Any]
_Change: TypeAlias = Callable[[LogicalPlan, LogicalPlan, Request], LogicalPlan]


def apply_requests(
    plan: LogicalPlan, declared: LogicalPlan, requests: Sequence[Request]
) -> LogicalPlan:
    """The plan after all of them, checked. `declared` is what the package says."""
    if len(requests) > REQUESTS_MAX:
        raise InvalidArgumentError(f"at most {REQUESTS_MAX} requests at a time")
    for request in requests:
        kind = str(request.get("requestType", "")).removesuffix("Request")
        if kind not in _CHANGES:
            raise InvalidArgumentError(
                f"there is no request {kind!r}; there is {', '.join(sorted(_CHANGES))}"
            )
        try:
            plan = _CHANGES[kind](plan, declared, request)
        except KeyError as error:
            raise InvalidArgumentError(f"{kind} needs {error}") from error
    plan.validate()
    return plan


def _create_operator(plan: LogicalPlan, declared: LogicalPlan, request: Request) -> LogicalPlan:
    name = request["operatorName"]
    if any(one.name == name for one in plan.operators):
        raise InvalidArgumentError("the operator is there", operator=name)
    found = _operator(declared, name, "the package declares no such operator")
    given = request.get("operatorFQCN", request.get("class", found.function))
    if given != found.function:
        raise InvalidArgumentError(f"the package declares {name} as {found.function}, not {given}")
    return replace(plan, operators=(*plan.operators, found))


def _remove_operator(plan: LogicalPlan, declared: LogicalPlan, request: Request) -> LogicalPlan:
    """With its streams: those it makes, and its ends of those it reads."""
    name = request["operatorName"]
    _operator(plan, name)
    streams = [
        replace(stream, sinks=tuple(one for one in stream.sinks if one.operator != name))
        for stream in plan.streams
        if stream.source.operator != name
    ]
    return replace(
        plan,
        operators=tuple(one for one in plan.operators if one.name != name),
        streams=tuple(stream for stream in streams if stream.sinks),
    )


def _create_stream(plan: LogicalPlan, declared: LogicalPlan, request: Request) -> LogicalPlan:
    stream = Stream(
        name=request["streamName"],
        source=Endpoint(request["sourceOperatorName"], request["sourceOperatorPortName"]),
        sinks=(Endpoint(request["sinkOperatorName"], request["sinkOperatorPortName"]),),
    )
    return replace(plan, streams=(*plan.streams, stream))


def _add_sink(plan: LogicalPlan, declared: LogicalPlan, request: Request) -> LogicalPlan:
    sink = Endpoint(request["sinkOperatorName"], request["sinkOperatorPortName"])
    stream = _stream(plan, request["streamName"])
    return _with_stream(plan, replace(stream, sinks=(*stream.sinks, sink)))


def _remove_stream(plan: LogicalPlan, declared: LogicalPlan, request: Request) -> LogicalPlan:
    _stream(plan, request["streamName"])
    kept = tuple(one for one in plan.streams if one.name != request["streamName"])
    return replace(plan, streams=kept)


def _set_property(plan: LogicalPlan, declared: LogicalPlan, request: Request) -> LogicalPlan:
    operator = _operator(plan, request["operatorName"])
    name = request["propertyName"]
    if name not in operator.properties:
        raise InvalidArgumentError("no such property", operator=operator.name, property=name)
    values = {**operator.properties, name: _value(request["propertyValue"])}
    return _with_operator(plan, replace(operator, properties=values))


def _set_attribute(plan: LogicalPlan, declared: LogicalPlan, request: Request) -> LogicalPlan:
    operator = _operator(plan, request["operatorName"])
    values = {**operator.attributes, request["attributeName"]: _value(request["attributeValue"])}
    return _with_operator(plan, replace(operator, attributes=values))


def _set_port_attribute(plan: LogicalPlan, declared: LogicalPlan, request: Request) -> LogicalPlan:
    operator = _operator(plan, request["operatorName"])
    wanted, name = request["portName"], request["attributeName"]
    value = _value(request["attributeValue"])

    def changed(port: Port) -> Port:
        if port.name != wanted:
            return port
        return replace(port, attributes={**port.attributes, name: value})

    if all(port.name != wanted for port in (*operator.inputs, *operator.outputs)):
        raise InvalidArgumentError("no such port", operator=operator.name, port=wanted)
    return _with_operator(
        plan,
        replace(
            operator,
            inputs=tuple(map(changed, operator.inputs)),
            outputs=tuple(map(changed, operator.outputs)),
        ),
    )


def _set_stream_attribute(
    plan: LogicalPlan, declared: LogicalPlan, request: Request
) -> LogicalPlan:
    stream = _stream(plan, request["streamName"])
    name, value = request["attributeName"], request["attributeValue"]
    if name != "LOCALITY" or (value is not None and value not in Locality.__members__):
        raise InvalidArgumentError("a stream has the attribute LOCALITY", name=name, value=value)
    return _with_stream(plan, replace(stream, locality=Locality[value] if value else None))


_CHANGES: dict[str, _Change] = {
    "CreateOperator": _create_operator,
    "RemoveOperator": _remove_operator,
    "CreateStream": _create_stream,
    "AddStreamSink": _add_sink,
    "RemoveStream": _remove_stream,
    "SetOperatorProperty": _set_property,
    "SetOperatorAttribute": _set_attribute,
    "SetPortAttribute": _set_port_attribute,
    "SetStreamAttribute": _set_stream_attribute,
}


def _operator(plan: LogicalPlan, name: str, text: str = "no such operator") -> Operator:
    for operator in plan.operators:
        if operator.name == name:
            return operator
    raise InvalidArgumentError(text, operator=name)


def _stream(plan: LogicalPlan, name: str) -> Stream:
    for stream in plan.streams:
        if stream.name == name:
            return stream
    raise InvalidArgumentError("no such stream", stream=name)


def _with_operator(plan: LogicalPlan, changed: Operator) -> LogicalPlan:
    operators = tuple(changed if one.name == changed.name else one for one in plan.operators)
    return replace(plan, operators=operators)


def _with_stream(plan: LogicalPlan, changed: Stream) -> LogicalPlan:
    streams = tuple(changed if one.name == changed.name else one for one in plan.streams)
    return replace(plan, streams=streams)


def _value(value: Any) -> Value:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return Json(json.dumps(value, sort_keys=True))
