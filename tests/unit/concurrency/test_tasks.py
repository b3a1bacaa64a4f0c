"""`TaskSet`: what it carries to an end, what it cancels, and which failures it logs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.concurrency.tasks import TaskSet
from headrace.errors import NotFoundError


async def test_run_carries_work_to_its_end_when_the_caller_leaves() -> None:
    tasks, go, done = TaskSet("t"), asyncio.Event(), list[int]()

    async def work() -> None:
        await go.wait()
        done.append(1)

    caller = asyncio.create_task(tasks.run(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    go.set()
    await tasks.finish()
    assert done == [1]
    assert not len(tasks)


async def test_close_cancels_what_runs_and_what_that_starts() -> None:
    tasks, cancelled = TaskSet("t"), list[str]()

    async def sleeper(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(name)
            if name == "first":
                tasks.start(sleeper("second"))
                await asyncio.sleep(0)

    tasks.start(sleeper("first"))
    await asyncio.sleep(0)
    await tasks.close()
    assert cancelled == ["first", "second"]


@pytest.mark.parametrize(
    ("error", "log_failures", "logged"),
    [(OSError("disk"), True, 1), (OSError("disk"), False, 0), (NotFoundError("no"), True, 0)],
)
async def test_failures_that_nobody_expects_are_logged(
    error: Exception, log_failures: bool, logged: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise error

    tasks = TaskSet("t", log_failures=log_failures)
    with caplog.at_level(logging.ERROR):
        tasks.start(fail(), name="one")
        await tasks.finish()
    assert len(caplog.records) == logged
