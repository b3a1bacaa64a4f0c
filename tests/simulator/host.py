"""To which simulated host a task belongs, and what its crash means to it.

A host lives from one crash to the next; each life is a `Boot`. Tasks inherit it through a context
variable from whoever starts them. When the boot is over its tasks are cancelled, and every door of
the runtime refuses them, so that their clean-up code reaches neither disk nor network: a machine
without power runs no `finally`.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass

from headrace.errors import UnavailableError

LOOPBACK = ("127.0.0.1", "::1", "localhost")  # the own host, by names that others cannot use
ANY = ("", "0.0.0.0", "::")


def machine_of(host: str) -> str:
    """A host is a process on a machine of its own, or, as `machine/process`, one of several that
    share addresses, unix sockets and the network's faults."""
    return host.partition("/")[0]


class Crashed(asyncio.CancelledError):
    """What a dead task gets at every door; it ends as cancelled, and no handler holds it up."""


@dataclass(slots=True, eq=False)
class Boot:
    host: str
    number: int = 0
    alive: bool = True

    def check(self) -> None:
        """Called at the doors of this boot's runtime."""
        check_alive()
        if not self.alive:
            # A task outside the host, such as a test's main, still holds the old runtime.
            raise UnavailableError("this host crashed; ask for its runtime anew", host=self.host)

    def context(self) -> Context:
        """A copy of the current context in which tasks belong to this boot."""
        context = copy_context()
        context.run(_current.set, self)
        return context


_current: ContextVar[Boot | None] = ContextVar("headrace_simulated_boot", default=None)


def current_boot(context: Context | None = None) -> Boot | None:
    return _current.get() if context is None else context.get(_current)


def check_alive() -> None:
    """End the calling task if its host is gone."""
    boot = _current.get()
    if boot is not None and not boot.alive:
        raise Crashed(f"host {boot.host} crashed")
