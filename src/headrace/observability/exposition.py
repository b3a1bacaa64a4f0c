"""Pages for Prometheus: families of the table's metrics, in the text format 0.0.4.

The counters of the hot paths are plain integers and `Histogram`s; a scrape reads them into
families, which `prometheus_client` writes. Pages are bounded whatever they describe: a label whose
values people make up (topics, groups, applications) has a limit, and what is beyond it is told as
one sample named `other` (`bounded`). A family holds at most SAMPLES_MAX samples; what does not fit
is counted, never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import core
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from headrace.observability.metrics import LATENCY_SECONDS, TABLE, Histogram, Metric

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SAMPLES_MAX = 5_000
LABEL_CHARACTERS_MAX = 200
OTHER = "other"
_BOUNDS = (*(f"{bound:g}" for bound in LATENCY_SECONDS), "+Inf")

Number = int | float


class Family:
    """A metric and its samples."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.count = 0
        self.dropped = 0
        self.collected = _collected(metric)

    def add(self, value: Number | Histogram, **labels: str) -> None:
        assert tuple(labels) == self.metric.labels, (self.metric.name, tuple(labels))
        if self.count >= SAMPLES_MAX:
            self.dropped += 1
            return
        self.count += 1
        values = [each[:LABEL_CHARACTERS_MAX] for each in labels.values()]
        if isinstance(self.collected, core.HistogramMetricFamily):
            assert isinstance(value, Histogram), self.metric.name
            buckets = list(zip(_BOUNDS, accumulate(value.counts), strict=True))
            self.collected.add_metric(values, buckets, value.seconds)
        else:
            assert not isinstance(value, Histogram), self.metric.name
            self.collected.add_metric(values, value)


def _collected(
    metric: Metric,
) -> core.CounterMetricFamily | core.GaugeMetricFamily | core.HistogramMetricFamily:
    if metric.kind == "counter":
        return core.CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    if metric.kind == "gauge":
        return core.GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    return core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def family(name: str) -> Family:
    """An empty family of the table's metric `headrace_<name>`."""
    return Family(TABLE[f"headrace_{name}"])


def single(name: str, value: Number | Histogram) -> Family:
    """The family of a metric without labels."""
    made = family(name)
    made.add(value)
    return made


def bounded(
    rows: Iterable[tuple[tuple[str, ...], Number]], limit: int
) -> list[tuple[tuple[str, ...], Number]]:
    """Rows of label values and a number; behind the first `limit` they become one, `other`.

    Give them in an order that lasts, oldest first: whoever has a row of its own keeps it.
    """
    kept, rest, left = [], None, 0
    width = 0
    for labels, value in rows:
        width = len(labels)
        if left < limit:
            kept.append((labels, value))
            left += 1
        else:
            rest = value if rest is None else rest + value
    if rest is not None:
        kept.append(((OTHER,) * width, rest))
    return kept


class _Page(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[core.Metric]:
        dropped = family("metrics_dropped")
        for one in self._families:
            if one.dropped:
                dropped.add(one.dropped, family=one.metric.name)
            if one.count:
                yield one.collected
        if dropped.count:
            yield dropped.collected


def format_families(families: Iterable[Family]) -> str:
    return generate_latest(_Page(families)).decode()
