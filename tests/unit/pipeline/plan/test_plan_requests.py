"""The origin's requests for a changed plan."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import InvalidArgumentError
from headrace.pipeline.plan.logical import Endpoint, LogicalPlan, Operator, Port, Stream
from headrace.pipeline.plan.plan_requests import apply_requests
from headrace.wire.umbilical.messages import Json, Locality

A = Operator("a", "shop:a", outputs=(Port("output"),), properties={"n": 1})
B = Operator("b", "shop:b", inputs=(Port("in"),), outputs=(Port("output"),))
C = Operator("c", "shop:c", inputs=(Port("in"),))
S = Stream("s", Endpoint("a", "output"), (Endpoint("b", "in"),))
DECLARED = LogicalPlan(
    "shop", (A, B, C), (S, Stream("t", Endpoint("b", "output"), (Endpoint("c", "in"),)))
)
PLAN = LogicalPlan("shop", (A, B), (S,))


def apply(*requests: dict[str, Any]) -> LogicalPlan:
    return apply_requests(PLAN, DECLARED, requests)


def test_an_operator_comes_with_its_stream_and_goes_with_it() -> None:
    grown = apply(
        {"requestType": "CreateOperatorRequest", "operatorName": "c", "operatorFQCN": "shop:c"},
        {
            "requestType": "CreateStreamRequest",
            "streamName": "t",
            "sourceOperatorName": "b",
            "sourceOperatorPortName": "output",
            "sinkOperatorName": "c",
            "sinkOperatorPortName": "in",
        },
    )
    assert grown == DECLARED
    removed = {"requestType": "RemoveOperator", "operatorName": "c"}
    assert apply_requests(grown, DECLARED, [removed]) == PLAN


def test_a_second_reader() -> None:
    plan = apply(
        {"requestType": "CreateOperatorRequest", "operatorName": "c"},
        {
            "requestType": "AddStreamSinkRequest",
            "streamName": "s",
            "sinkOperatorName": "c",
            "sinkOperatorPortName": "in",
        },
    )
    assert plan.streams[0].sinks == (Endpoint("b", "in"), Endpoint("c", "in"))


def test_values() -> None:
    plan = apply(
        {
            "requestType": "SetOperatorPropertyRequest",
            "operatorName": "a",
            "propertyName": "n",
            "propertyValue": 2,
        },
        {
            "requestType": "SetOperatorAttributeRequest",
            "operatorName": "a",
            "attributeName": "RECOVERY_ATTEMPTS",
            "attributeValue": 3,
        },
        {
            "requestType": "SetPortAttributeRequest",
            "operatorName": "b",
            "portName": "in",
            "attributeName": "QUEUE_CAPACITY",
            "attributeValue": [1],
        },
        {
            "requestType": "SetStreamAttributeRequest",
            "streamName": "s",
            "attributeName": "LOCALITY",
            "attributeValue": "NODE_LOCAL",
        },
    )
    assert plan.operators[0].properties == {"n": 2}
    assert plan.operators[0].attributes == {"RECOVERY_ATTEMPTS": 3}
    assert plan.operators[1].inputs[0].attributes == {"QUEUE_CAPACITY": Json("[1]")}
    assert plan.streams[0].locality is Locality.NODE_LOCAL


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({}, "there is no request"),
        ({"requestType": "Format"}, "there is no request"),
        ({"requestType": "RemoveOperator"}, "needs 'operatorName'"),
        ({"requestType": "RemoveOperator", "operatorName": "z"}, "no such operator"),
        ({"requestType": "RemoveOperator", "operatorName": "a"}, "not connected"),
        ({"requestType": "CreateOperator", "operatorName": "a"}, "is there"),
        ({"requestType": "CreateOperator", "operatorName": "z"}, "declares no such"),
        (
            {"requestType": "CreateOperator", "operatorName": "c", "class": "os:system"},
            "declares c as shop:c",
        ),
        ({"requestType": "RemoveStream", "streamName": "z"}, "no such stream"),
        (
            {
                "requestType": "SetOperatorProperty",
                "operatorName": "a",
                "propertyName": "z",
                "propertyValue": 1,
            },
            "no such property",
        ),
        (
            {
                "requestType": "SetPortAttribute",
                "operatorName": "a",
                "portName": "z",
                "attributeName": "Q",
                "attributeValue": 1,
            },
            "no such port",
        ),
        (
            {
                "requestType": "SetStreamAttribute",
                "streamName": "s",
                "attributeName": "LOCALITY",
                "attributeValue": "NEXT_DOOR",
            },
            "LOCALITY",
        ),
    ],
)
def test_refused(request_: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        apply(request_)


def test_one_wrong_request_refuses_all() -> None:
    with pytest.raises(InvalidArgumentError):
        apply({"requestType": "CreateOperator", "operatorName": "c"})  # nothing feeds it
