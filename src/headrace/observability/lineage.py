"""OpenLineage events on their way to a collector; an extra (`pip install "headrace[lineage]"`).

What happened is said in the plain values of this module; the `openlineage` client, imported by
`LineageEmitter` alone, makes events of them and sends them. Sending blocks: use an executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Literal, TypeAlias

from headrace.errors import ConfigError, UnavailableError

State: TypeAlias = Literal["START", "RUNNING", "COMPLETE", "ABORT", "FAIL"]
PRODUCER = "urn:headrace:controller"
SEND_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Dataset:
    """`namespace` says where, `name` what, by OpenLineage's naming."""

    namespace: str
    name: str
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class RunEvent:
    state: State
    time_ms: int
    run_id: str
    """A UUID, the same from START to the end."""
    namespace: str
    job: str
    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()
    error: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Windows, lag and the like, told under the run facet `headrace`."""


class LineageEmitter:
    def __init__(self, url: str) -> None:
        try:
            from openlineage.client import OpenLineageClient, event_v2, facet_v2
            from openlineage.client.transport.http import HttpConfig, HttpTransport
        except ImportError as error:
            raise ConfigError(
                'lineage needs the extra `lineage`: pip install "headrace[lineage]"'
            ) from error
        config = HttpConfig.from_dict({"type": "http", "url": url, "timeout": SEND_SECONDS})
        self._client: Any = OpenLineageClient(transport=HttpTransport(config))
        self._events: Any = event_v2
        self._facets: Any = facet_v2

    def send(self, event: RunEvent) -> None:
        """Blocks. UnavailableError when nobody took it."""
        made = self.make(event)
        try:
            self._client.emit(made)
        except Exception as error:  # the client lets through whatever its HTTP library raises
            raise UnavailableError(f"lineage collector: {error}") from error

    def close(self) -> None:
        self._client.close(SEND_SECONDS)

    def make(self, event: RunEvent) -> Any:
        """The client's own event."""
        v2, facets = self._events, self._facets
        moment = datetime.fromtimestamp(event.time_ms / 1000, UTC)
        return v2.RunEvent(
            eventType=v2.RunState[event.state],
            eventTime=moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            run=v2.Run(runId=event.run_id, facets=self._run_facets(event)),
            job=v2.Job(
                namespace=event.namespace,
                name=event.job,
                facets={
                    "jobType": facets.job_type_job.JobTypeJobFacet(
                        processingType="STREAMING",
                        integration="HEADRACE",
                        jobType="PIPELINE",
                        producer=PRODUCER,
                    )
                },
            ),
            inputs=[self._input(dataset) for dataset in event.inputs],
            outputs=[self._output(dataset) for dataset in event.outputs],
            producer=PRODUCER,
        )

    def _run_facets(self, event: RunEvent) -> dict[str, Any]:
        engine = self._facets.processing_engine_run.ProcessingEngineRunFacet(
            version=version("headrace"), name="headrace", producer=PRODUCER
        )
        made = {"processing_engine": engine}
        if event.error:
            made["errorMessage"] = self._facets.error_message_run.ErrorMessageRunFacet(
                message=event.error, programmingLanguage="python", producer=PRODUCER
            )
        if event.facts:
            made["headrace"] = self._facets.RunFacet(producer=PRODUCER).with_additional_properties(
                **event.facts
            )
        return made

    def _input(self, dataset: Dataset) -> Any:
        made = self._events.InputDataset(namespace=dataset.namespace, name=dataset.name)
        if dataset.rows is not None:
            statistics = self._facets.input_statistics_input_dataset
            made.inputFacets = {
                "inputStatistics": statistics.InputStatisticsInputDatasetFacet(
                    rowCount=dataset.rows, producer=PRODUCER
                )
            }
        return made

    def _output(self, dataset: Dataset) -> Any:
        made = self._events.OutputDataset(namespace=dataset.namespace, name=dataset.name)
        if dataset.rows is not None:
            statistics = self._facets.output_statistics_output_dataset
            made.outputFacets = {
                "outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(
                    rowCount=dataset.rows, producer=PRODUCER
                )
            }
        return made
