"""Whether the broker answers the control plane: a page without it shows nothing."""

from __future__ import annotations

import asyncio

from headrace.errors import HeadraceError
from headrace.observability.exposition import Family
from headrace.web.metrics.checks import Check
from headrace.web.server.logins import Broker

SECONDS = 2.0


class ReachedBroker:
    role = "broker"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def families(self) -> list[Family]:
        return []

    async def checks(self) -> list[Check]:
        try:
            async with asyncio.timeout(SECONDS), self._broker.as_service() as client:
                await client.ping()
        except TimeoutError:
            return [Check("answers", False, f"no answer within {SECONDS:.0f} s")]
        except HeadraceError as error:
            return [Check("answers", False, str(error))]
        return [Check("answers", True)]
