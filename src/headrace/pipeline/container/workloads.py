"""What a container runs: an application's queries, or an ordinary script."""

from __future__ import annotations

from typing import TypeAlias

from headrace.pipeline.container.script_workload import ScriptWorkload
from headrace.pipeline.container.workload import Workload, WorkloadSettings
from headrace.pipeline.plan.describe import script_text
from headrace.runtime.interfaces import Runtime
from headrace.wire.umbilical.messages import StreamingContainerContext

AnyWorkload: TypeAlias = Workload | ScriptWorkload


def make_workload(
    runtime: Runtime, settings: WorkloadSettings, context: StreamingContainerContext
) -> AnyWorkload:
    kind = ScriptWorkload if script_text(settings.package, settings.entry) else Workload
    return kind(runtime, settings, context)
