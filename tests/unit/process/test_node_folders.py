"""Which folders of a data directory are data nodes, and which worker runs them."""

from __future__ import annotations

import pytest

from headrace.config.settings import Settings
from headrace.process.node_folders import (
    advertised_host,
    broker_folder,
    node_folder,
    node_numbers,
    numbers_of,
    without_port,
)


def test_the_first_worker_has_the_folders_of_a_single_process() -> None:
    assert [node_folder(n) for n in (0, 1, 12)] == ["node", "node-1", "node-12"]
    assert [broker_folder(n) for n in (0, 1, 12)] == ["broker", "broker-1", "broker-12"]


def test_only_folders_of_data_nodes_count() -> None:
    names = [
        "node-10",
        "broker",
        "node",
        "node-2",
        "node-0",
        "node-x",
        "nodes",
        "node-02",
        "up.json",
    ]
    assert node_numbers(names) == [0, 2, 10]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_every_folder_is_run_by_one_worker_whatever_their_number(workers: int) -> None:
    for folders in (1, 3, 7):
        run = [numbers_of(worker, workers, range(folders)) for worker in range(workers)]
        assert sorted(n for each in run for n in each) == list(range(max(workers, folders)))
        assert all(worker in each for worker, each in enumerate(run)), "each has one of its own"


@pytest.mark.parametrize(
    ("advertise", "told"),
    [
        ("", ""),
        ("host", "host"),
        ("host:9", "host"),
        ("[fd00::1]:9", "[fd00::1]"),
        ("::1", "[::1]"),
    ],
)
def test_a_further_node_tells_the_same_host_and_its_own_port(advertise: str, told: str) -> None:
    assert advertised_host(advertise) == told
    assert without_port(Settings(advertise=advertise)).node_port == 0
