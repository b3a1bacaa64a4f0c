"""How far queries have read, as offsets of a consumer group each."""

from __future__ import annotations

import json

import pytest

from headrace.pipeline.container.query_positions import group_of, operator_of, read_ends

OPERATORS = ("orders", "revenue", "split", "split.old", "audit_edge")


@pytest.mark.parametrize(
    ("group", "operator"),
    [
        ("pipeline.shop.revenue", "revenue"),
        ("pipeline.shop.revenue_edge", "revenue"),
        ("pipeline.shop.split.small", "split"),
        ("pipeline.shop.split.small_dead_letter", "split"),
        ("pipeline.shop.orders_dead_letter", "orders"),
        ("pipeline.shop.audit_edge", "audit_edge"),
        ("pipeline.shop.gone", None),
        ("pipeline.shops.revenue", None),
        ("revenue", None),
    ],
)
def test_a_group_says_whose_positions_it_has(group: str, operator: str | None) -> None:
    assert operator_of(group, "shop", OPERATORS) == operator


def test_two_queries_on_one_topic_have_two_groups() -> None:
    assert group_of("shop", "revenue") != group_of("shop", "audit")


def test_where_a_query_is_comes_from_all_of_its_sources() -> None:
    first = {"v": 1, "c": "cluster", "p": {"7/0": [0, 12], "7/1": [0, 3]}}
    second = {"v": 1, "c": "cluster", "p": {"9/0": [2, 5]}}
    finished = read_ends([json.dumps(first), second, {"v": 1, "w": {"4": 1}}, None])
    assert finished is not None
    assert finished.positions == {("7", 0): (0, 12), ("7", 1): (0, 3), ("9", 0): (2, 5)}
    assert read_ends([None, {"some": "other source"}]) is None
