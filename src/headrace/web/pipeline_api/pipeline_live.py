"""Live topics of the pipelines' pages: `alerts` (how much is wrong, for every page), `problems`
(the front page), and `pipeline/<name>` for each pipeline whose page somebody looks at.

Everything is looked at once a second while any page is open, and never when none is.
"""

from __future__ import annotations

import msgspec

from headrace.errors import NotFoundError
from headrace.web.diagnosis.types import Situation
from headrace.web.pipeline_api.api import Diagnosis, Sight
from headrace.web.server.live import Live, Sampler, View

SECONDS = 1.0
SENT_MS = 20_000  # windows that are sent again and again; a page fetches older ones itself
_FAILED = ("FAILED", "UNREADABLE")


class Alerts(msgspec.Struct, frozen=True, kw_only=True):
    critical: int
    warning: int
    notice: int
    pipelines: int
    failed: int


def alerts_of(situation: Situation) -> Alerts:
    severities = [one.severity for one in situation.problems]
    return Alerts(
        critical=severities.count("critical"),
        warning=severities.count("warning"),
        notice=severities.count("notice"),
        pipelines=len(situation.pipelines),
        failed=sum(one.state in _FAILED for one in situation.pipelines),
    )


def sample(sampler: Sampler, live: Live, diagnosis: Diagnosis, sight: Sight) -> None:
    async def alerts() -> View:
        found = await diagnosis.situation()
        live.publish("problems", lambda login: sight.situation(found, login))
        for one in found.pipelines:
            await publish(one.name, found.now_ms)
        return lambda login: alerts_of(sight.situation(found, login))

    async def publish(name: str, now_ms: int) -> None:
        topic = f"pipeline/{name}"
        if not live.wanted(topic):
            return
        try:
            value = await diagnosis.live(name, now_ms - SENT_MS)
        except NotFoundError:
            return  # it cannot be read, or was replaced a moment ago
        live.publish(topic, lambda login: sight.live(value, login))

    sampler.add("alerts", alerts, seconds=SECONDS, also=("problems",))
