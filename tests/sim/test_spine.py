"""A data node loses power under a real broker: nothing acknowledged is lost, a seed replays it."""

import os
import subprocess
import sys

import pytest

from headrace.errors import HeadraceError
from tests.sim import spine
from tests.simulator.disk import SimulatedFile


def check(done: spine.Spine) -> None:
    stored = set(done.polled)
    assert len(stored) == len(done.polled), "something was stored twice"
    assert [p for p in done.polled if p not in done.unknown] == done.acknowledged
    assert stored <= set(done.acknowledged) | done.unknown, "something was invented"


@pytest.mark.parametrize("seed", range(5))
def test_acknowledged_messages_survive_a_power_cut_of_the_data_node(seed: int) -> None:
    done = spine.run(seed)
    assert len(done.acknowledged) == spine.BATCHES * spine.BATCH_MESSAGES
    check(done)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_many_seeds(seed: int) -> None:
    check(spine.run(seed))


def test_the_crash_is_felt() -> None:
    """The scenario would prove nothing if the client never noticed."""
    assert any("crash" in line for line in spine.run(1).simulation.trace)


def test_removing_the_sync_before_the_acknowledgement_loses_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimulatedFile, "sync_data", lambda file: None)
    with pytest.raises((AssertionError, HeadraceError)):
        check(spine.run(0))


def trace_of(seed: int, hash_seed: int) -> str:
    return subprocess.run(
        [sys.executable, "-m", "tests.sim.spine", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_same_seed_gives_the_same_trace_under_two_hash_seeds() -> None:
    first = trace_of(3, 0)
    assert len(first.splitlines()) > 500
    assert first == trace_of(3, 1)
