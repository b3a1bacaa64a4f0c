"""`retry`: which failures are tried again, for how long, and what is said of the last."""

from __future__ import annotations

import pytest

from headrace.concurrency.retry import INSIDE, OUTSIDE, RetryPolicy, retry
from headrace.errors import DeadlineError, HeadraceError, NotFoundError, SealedError
from headrace.errors import UnavailableError as Unavailable
from headrace.runtime.interfaces import Runtime
from tests.simulator.runtime import Simulation


def attempt_all(
    failures: list[HeadraceError], policy: RetryPolicy, seconds: float = 30.0
) -> tuple[str, list[HeadraceError]]:
    """What comes out where these failures come first, and of which of them was told."""
    simulation, told, left = Simulation(1), list[HeadraceError](), list(failures)

    async def main() -> str:
        async def attempt(_: float) -> str:
            if left:
                raise left.pop(0)
            return "done"

        runtime = simulation.runtime("client")
        return await retry(runtime, attempt, seconds, policy, on_failure=told.append)

    return simulation.run(main()), told


@pytest.mark.parametrize("policy", [INSIDE, OUTSIDE], ids=["inside", "outside"])
def test_failures_that_pass_are_tried_again_and_told(policy: RetryPolicy) -> None:
    failures: list[HeadraceError] = [Unavailable("away"), DeadlineError("late")]
    assert attempt_all(failures, policy) == ("done", failures)


@pytest.mark.parametrize("policy", [INSIDE, OUTSIDE], ids=["inside", "outside"])
def test_others_are_raised_at_once(policy: RetryPolicy) -> None:
    with pytest.raises(NotFoundError):
        attempt_all([NotFoundError("nothing")], policy)


def test_a_client_does_not_repeat_what_only_services_may() -> None:
    assert attempt_all([SealedError("over")], INSIDE)[0] == "done"
    with pytest.raises(SealedError):
        attempt_all([SealedError("over")], OUTSIDE)


@pytest.mark.parametrize("policy", [INSIDE, OUTSIDE], ids=["inside", "outside"])
def test_the_last_failure_ends_it_with_the_time(policy: RetryPolicy) -> None:
    with pytest.raises(Unavailable):
        attempt_all([Unavailable("away") for _ in range(1000)], policy, seconds=2.0)


@pytest.mark.parametrize("cut_off", [True, False])
def test_only_inside_the_deadline_ends_an_attempt(cut_off: bool) -> None:
    simulation = Simulation(1)

    async def main() -> str:
        runtime: Runtime = simulation.runtime("client")

        async def slow(_: float) -> str:
            await runtime.clock.sleep(10)
            return "late"

        return await retry(runtime, slow, 1.0, INSIDE if cut_off else OUTSIDE)

    if cut_off:
        with pytest.raises(DeadlineError, match="no answer in time"):
            simulation.run(main())
    else:
        assert simulation.run(main()) == "late"
