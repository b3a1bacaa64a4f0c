"""Where nodes of a graph go, and what they say."""

from __future__ import annotations

from headrace.pipeline.controller.application_views import details
from headrace.web.pipeline_api.graph import Link, graphs, layered
from tests.unit.pipeline.controller.application.test_state import Driver
from tests.unit.web.stage import CONTAINER, report, running


def link(source: str, target: str) -> Link:
    return Link(source=source, target=target, stream=source, between_containers=False)


def test_every_arrow_goes_right() -> None:
    links = [link("a", "b"), link("b", "c"), link("a", "c"), link("d", "c")]
    places = layered(["a", "b", "c", "d"], links)
    assert [places[name][0] for name in "abcd"] == [0, 1, 2, 0]
    assert all(places[one.source][0] < places[one.target][0] for one in links)


def test_no_two_nodes_share_a_place() -> None:
    names = [f"n{index}" for index in range(30)]
    links = [link(names[index // 3], names[index]) for index in range(1, 30)]
    places = layered(names, links)
    assert len(set(places.values())) == len(names)


def test_arrows_of_two_chains_do_not_cross() -> None:
    links = [link("a", "y"), link("b", "x")]
    places = layered(["a", "b", "x", "y"], links)
    assert (places["a"][1] < places["b"][1]) == (places["y"][1] < places["x"][1])


def test_an_empty_graph_is_one() -> None:
    assert layered([], []) == {}


def test_nodes_say_what_their_operators_do() -> None:
    driver = running()
    view = details(driver.application, driver.now)
    found = graphs(view, {}, driver.now)
    assert [one.label for one in found.logical.nodes] == ["orders", "revenue"]
    orders, revenue = found.physical.nodes
    assert (orders.kind, orders.topic, orders.container) == ("source", "shop/orders", CONTAINER)
    assert (revenue.kind, revenue.layer, revenue.rows_per_second) == ("sink", 1, 20.0)
    (stream,) = found.logical.links
    assert (stream.source, stream.target, stream.stream) == ("orders", "revenue", "orders")
    assert not stream.between_containers


def test_a_stream_between_containers_is_marked() -> None:
    driver = Driver(remote=True)
    driver.start()
    driver.beat("shop.1.1", report(1, 1, driver.now))
    found = graphs(details(driver.application, driver.now), {}, driver.now)
    assert [one.between_containers for one in found.physical.links] == [True]
    assert len({one.container for one in found.physical.nodes}) == 2
