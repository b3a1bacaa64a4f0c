"""Every metric there is, in one table: name, kind, labels, meaning, which role tells it.

`/metrics` makes its families from this table and nowhere else; the reference page, the Grafana
dashboard and the alert rules are checked against it. Names are `headrace_<role>_<noun>_<unit>`.
`Histogram` is what the hot paths measure latencies with.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

LATENCY_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper ends of the buckets, the same everywhere, so that roles can be compared and added up."""


class Histogram:
    """Latencies in buckets: one search and two additions for each value.

    Plain integers, no locks: a histogram belongs to one event loop, and whoever reads it from
    another thread may miss the newest value, nothing more.
    """

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_SECONDS) + 1)
        """Of each bucket by itself; the last has no upper end."""
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_SECONDS, seconds)] += 1
        self.seconds += seconds

    def observe_many(self, seconds: float, count: int) -> None:
        """Observe `count` values of the same size."""
        self.counts[bisect_left(LATENCY_SECONDS, seconds)] += count
        self.seconds += seconds * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, others: Iterable[Histogram]) -> Histogram:
        """This one with others in it."""
        for other in others:
            self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
            self.seconds += other.seconds
        return self


Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    role: str = ""

    def __post_init__(self) -> None:
        assert (self.kind == "counter") == self.name.endswith("_total"), self.name


TABLE: dict[str, Metric] = {}


def _section(role: str, *rows: tuple[str, Kind, tuple[str, ...], str]) -> None:
    for name, kind, labels, text in rows:
        whole = f"headrace_{name}"
        assert whole not in TABLE, whole
        TABLE[whole] = Metric(whole, kind, text, labels, role)


_ROLE = ("role",)
_section(
    "every role",
    ("process_info", "gauge", ("role", "version"), "1; says what runs in this process."),
    ("process_ready", "gauge", _ROLE, "1 when the role can serve; see /ready for the reasons."),
    ("process_uptime_seconds", "gauge", (), "Since the process began to serve."),
    ("process_cpu_seconds_total", "counter", (), "Processor time of the process and its children."),
    ("process_memory_bytes", "gauge", (), "Resident memory of the process."),
    ("process_threads", "gauge", (), "Threads of the process."),
    ("process_loop_delay_seconds", "gauge", (), "How late the event loop ran its last tick."),
    ("process_loop_delay_max_seconds", "gauge", (), "The latest of the last 60 ticks."),
    ("metrics_dropped", "gauge", ("family",), "Samples left out because a family has too many."),
)

_section(
    "workers",
    ("worker_up", "gauge", ("worker",), "1 while the worker serves; told by their parent."),
    ("worker_restarts_total", "counter", ("worker",), "Times a worker ended and came back."),
)

_TOPIC = ("stream", "topic")
_section(
    "broker",
    ("broker_leading", "gauge", (), "1 while this broker leads; the others stand by."),
    ("broker_epoch", "gauge", (), "Of the lease it leads by; -1 when it never led."),
    (
        "broker_requests_total",
        "counter",
        ("command", "dialect"),
        "Requests answered, by command and by the dialect of Iggy's protocol.",
    ),
    (
        "broker_request_errors_total",
        "counter",
        ("command", "code"),
        "Requests refused, by the number of the refusal in the protocol.",
    ),
    (
        "broker_request_duration_seconds",
        "histogram",
        ("command",),
        "From the whole request to its answer, without the network; polls from memory count 0, and"
        " the time that a poll is held for messages counts for nobody.",
    ),
    ("broker_received_bytes_total", "counter", (), "Bytes of requests, without frame headers."),
    ("broker_sent_bytes_total", "counter", (), "Bytes of answers, without frame headers."),
    ("broker_connections", "gauge", ("transport",), "Clients that are connected."),
    (
        "broker_connections_refused_total",
        "counter",
        ("transport",),
        "Connections closed at once because there were too many.",
    ),
    (
        "broker_connections_cut_off_total",
        "counter",
        ("transport",),
        "Connections ended for being silent, slow or short of memory.",
    ),
    (
        "broker_frames_malformed_total",
        "counter",
        ("transport",),
        "Frames that nobody could read.",
    ),
    ("broker_held_bytes", "gauge", ("transport",), "Requests and answers in memory."),
    ("broker_relayed_connections", "gauge", (), "Connections a standby passes to the leader."),
    ("broker_messages_received_total", "counter", (), "Messages that clients sent."),
    ("broker_messages_received_bytes_total", "counter", (), "Their bytes."),
    ("broker_messages_delivered_total", "counter", (), "Messages that clients polled."),
    ("broker_messages_delivered_bytes_total", "counter", (), "Their bytes."),
    ("broker_requests_repeated_total", "counter", (), "Numbered requests answered from memory."),
    ("broker_polls_waiting", "gauge", (), "Polls that found nothing and are held for messages."),
    ("broker_polls_held_total", "counter", (), "Polls that were held for messages."),
    ("broker_polls_woken_total", "counter", (), "Held polls that messages were committed for."),
    ("broker_coordinating", "gauge", (), "1 while this worker changes the catalogue."),
    ("broker_shards_led", "gauge", (), "Shards that this worker leads."),
    (
        "broker_requests_passed_on_total",
        "counter",
        (),
        "Requests of this worker's clients that another worker answered.",
    ),
    (
        "broker_requests_taken_in_total",
        "counter",
        (),
        "Requests that this worker answered for clients of others.",
    ),
    (
        "broker_loop_delay_seconds",
        "histogram",
        (),
        "How late the event loop of this worker ran each of ten ticks a second.",
    ),
    ("broker_streams", "gauge", (), "Streams in the catalogue."),
    ("broker_topics", "gauge", (), "Topics in the catalogue."),
    ("broker_partitions_open", "gauge", (), "Partitions in use since this broker leads."),
    ("broker_users", "gauge", (), "Users in the catalogue."),
    ("broker_groups", "gauge", (), "Consumer groups in the catalogue."),
    ("broker_streams_doomed", "gauge", (), "Deleted partitions whose data is not yet deleted."),
    ("broker_publishers", "gauge", (), "Publishers of windows that did not end."),
    ("broker_staged_messages", "gauge", (), "Messages staged for windows that are not closed."),
    ("broker_staged_bytes", "gauge", (), "Files that hold such messages."),
    (
        "broker_staged_oldest_seconds",
        "gauge",
        (),
        "How long the publisher of such messages that was silent longest has staged nothing.",
    ),
    (
        "broker_publishers_expired_total",
        "counter",
        (),
        "Publishers whose staged messages were removed, because nobody closed them.",
    ),
    (
        "broker_topic_messages_total",
        "counter",
        _TOPIC,
        "Messages ever written to a topic; starts again with a purge.",
    ),
    ("broker_topic_stored_messages", "gauge", _TOPIC, "Messages a topic keeps."),
    ("broker_topic_stored_bytes", "gauge", _TOPIC, "Bytes a topic keeps."),
    (
        "broker_group_lag_messages",
        "gauge",
        ("stream", "topic", "group"),
        "Messages behind the last offset a consumer group stored.",
    ),
    (
        "broker_group_members",
        "gauge",
        ("stream", "topic", "group"),
        "Clients that joined a consumer group.",
    ),
)

_section(
    "data node",
    ("node_id", "gauge", (), "The node's number in the cluster; -1 before it has one."),
    ("node_in_touch", "gauge", (), "1 while the placement manager answers heartbeats."),
    ("node_appends_total", "counter", (), "Record batches stored or refused."),
    ("node_append_failures_total", "counter", (), "Record batches that could not be stored."),
    ("node_appends_in_flight", "gauge", (), "Record batches that wait for the disk or replicas."),
    (
        "node_append_duration_seconds",
        "histogram",
        (),
        "From a record batch to its acknowledgement, replicas included.",
    ),
    ("node_fetches_total", "counter", (), "Streams read, one count for each in a FETCH."),
    (
        "node_fetches_located_total",
        "counter",
        (),
        "FETCHes answered with a place in a file, for readers on the node's machine.",
    ),
    ("node_fetch_failures_total", "counter", (), "Streams that could not be read."),
    (
        "node_fetch_duration_seconds",
        "histogram",
        (),
        "Reading for a FETCH, without the time it waits for data; not those from memory.",
    ),
    ("node_fetched_bytes_total", "counter", (), "Bytes given to readers."),
    ("node_written_bytes_total", "counter", (), "Bytes written to segment files."),
    ("node_commit_groups_total", "counter", (), "Group commits; each is one round of syncs."),
    ("node_file_writes_total", "counter", (), "Writes of segment files in group commits."),
    ("node_queued_bytes", "gauge", (), "Bytes that wait to be written."),
    ("node_open_files", "gauge", (), "Segment files that are open."),
    ("node_tail_cache_bytes", "gauge", (), "Newest record batches kept in memory."),
    ("node_tail_cache_hits_total", "counter", (), "Reads answered from them."),
    ("node_tail_cache_misses_total", "counter", (), "Reads that went to the files."),
    ("node_journal_groups_total", "counter", (), "Group commits through the redo journal."),
    ("node_journal_bytes_total", "counter", (), "Bytes written to the redo journal."),
    ("node_io_tasks_total", "counter", (), "Blocking calls that threads finished."),
    ("node_io_tasks_in_flight", "gauge", (), "Blocking calls in a thread."),
    ("node_io_tasks_pending", "gauge", (), "Blocking calls that wait for a thread."),
    ("node_io_task_seconds", "gauge", (), "Mean of a blocking call over the last minute."),
    ("node_disk_free_bytes", "gauge", (), "Of the file system that holds the log."),
    ("node_disk_total_bytes", "gauge", (), "Of the file system that holds the log."),
    ("node_ranges", "gauge", ("state",), "Ranges by state: open, sealed, unreadable."),
    (
        "node_ranges_quarantined",
        "gauge",
        (),
        "Ranges kept aside because the placement manager does not know them.",
    ),
    ("node_metadata_version", "gauge", (), "Newest placement metadata seen; -1: none yet."),
    ("node_ranges_failed", "gauge", (), "Ranges whose files cannot be written any more."),
    ("node_ranges_incomplete", "gauge", (), "Ranges that are being copied from other nodes."),
    ("node_ranges_led", "gauge", (), "Ranges this node orders for others."),
    ("node_corrupt_spans", "gauge", (), "Damaged stretches of the log that are known."),
    ("node_repaired_spans_total", "counter", (), "Damaged stretches made good from replicas."),
    ("node_copied_bytes_total", "counter", (), "Bytes copied from other nodes."),
    ("node_replicas_unreachable", "gauge", (), "Other nodes that do not answer."),
    ("node_replica_queued_bytes", "gauge", (), "Bytes on their way to other nodes."),
    (
        "node_replication_lag_records",
        "gauge",
        (),
        "Records of the range that is furthest behind on some replica.",
    ),
    ("node_ranges_behind", "gauge", (), "Ranges of which some replica does not keep up."),
    ("node_connections", "gauge", (), "SBP connections."),
    ("node_requests_total", "counter", (), "SBP requests over TCP."),
    ("node_answers_throttled_total", "counter", (), "Answers that asked for a pause."),
)

_section(
    "placement manager",
    ("placement_leading", "gauge", (), "1 while this placement manager leads."),
    ("placement_metadata_version", "gauge", (), "One more with each transaction."),
    (
        "placement_metadata_outdated",
        "gauge",
        (),
        "1 while data nodes have seen newer metadata than this leader has.",
    ),
    ("placement_managers", "gauge", (), "Placement managers that are known."),
    ("placement_nodes", "gauge", ("state",), "Data nodes, alive or lost."),
    ("placement_node_alive", "gauge", ("node",), "1 for each data node that is alive."),
    ("placement_node_free_bytes", "gauge", ("node",), "Free disk each data node reported."),
    ("placement_streams", "gauge", (), "Streams, plain and owned."),
    ("placement_ranges", "gauge", ("state",), "Ranges: open, sealed, sealing."),
    (
        "placement_ranges_under_replicated",
        "gauge",
        (),
        "Ranges with fewer whole replicas on live nodes than were asked for.",
    ),
    ("placement_ranges_unavailable", "gauge", (), "Ranges without a whole replica on live nodes."),
    ("placement_leases_held", "gauge", (), "Leases that somebody holds: broker, controller."),
)

_APPLICATION = ("application",)
_OPERATOR = ("application", "operator", "instance")
_CONTAINER = ("application", "container")
_section(
    "controller",
    ("pipeline_state", "gauge", ("application", "state"), "1 for the state an application is in."),
    ("pipeline_rows_total", "counter", _APPLICATION, "Rows its sources gave."),
    (
        "pipeline_lag_rows",
        "gauge",
        _APPLICATION,
        "Rows in its topics that its slowest queries have not committed, whether it runs or not.",
    ),
    (
        "pipeline_lag_seconds",
        "gauge",
        _APPLICATION,
        "How long the oldest of them has waited, as far as is known.",
    ),
    ("pipeline_rows_late_total", "counter", _APPLICATION, "Rows dropped behind the watermark."),
    ("pipeline_rows_dead_total", "counter", _APPLICATION, "Rows set aside as bad."),
    ("pipeline_restarts_total", "counter", _APPLICATION, "Times a container was started again."),
    (
        "pipeline_windows_behind",
        "gauge",
        _APPLICATION,
        "Windows between now and the newest one that is committed.",
    ),
    (
        "pipeline_committed_window_age_seconds",
        "gauge",
        _APPLICATION,
        "Since the newest committed window began.",
    ),
    ("pipeline_operator_rows_in_total", "counter", _OPERATOR, "Rows an operator took."),
    ("pipeline_operator_rows_out_total", "counter", _OPERATOR, "Rows an operator gave."),
    (
        "pipeline_operator_rows_late_total",
        "counter",
        _OPERATOR,
        "Rows dropped behind the watermark.",
    ),
    ("pipeline_operator_rows_bad_total", "counter", _OPERATOR, "Rows that were set aside as bad."),
    ("pipeline_operator_bytes_in_total", "counter", _OPERATOR, "Bytes an operator read."),
    (
        "pipeline_operator_cpu_seconds_total",
        "counter",
        _OPERATOR,
        "Processor time, shared in a query.",
    ),
    (
        "pipeline_operator_lag_rows",
        "gauge",
        _OPERATOR,
        "Rows that wait: in a topic for its slowest reader, else for the queries that end there.",
    ),
    (
        "pipeline_operator_checkpoint_seconds",
        "gauge",
        _OPERATOR,
        "Time the last checkpoint took.",
    ),
    (
        "pipeline_operator_failures",
        "gauge",
        _OPERATOR,
        "Failures since the last checkpoint.",
    ),
    (
        "pipeline_operator_latency_seconds",
        "gauge",
        _OPERATOR,
        "End of a window here less its end at the slowest upstream.",
    ),
    (
        "pipeline_operator_metric",
        "gauge",
        (*_OPERATOR, "metric"),
        "A metric of the user's, or of Spark's.",
    ),
    ("pipeline_container_memory_free_bytes", "gauge", _CONTAINER, "Free heap."),
    ("pipeline_container_gc_seconds_total", "counter", _CONTAINER, "Time in garbage collection."),
    ("pipeline_container_gc_collections_total", "counter", _CONTAINER, "Garbage collections."),
    (
        "pipeline_container_heartbeat_age_seconds",
        "gauge",
        _CONTAINER,
        "Since the last heartbeat.",
    ),
    (
        "pipeline_container_restarts_total",
        "counter",
        _CONTAINER,
        "Times it was started again.",
    ),
    ("umbilical_connections", "gauge", (), "Containers that are connected."),
    ("umbilical_calls_in_flight", "gauge", (), "Calls of containers that are being answered."),
    ("umbilical_calls_served_total", "counter", (), "Calls answered since the start."),
    ("umbilical_calls_repeated_total", "counter", (), "Calls answered again since the start."),
    (
        "umbilical_connections_refused_total",
        "counter",
        (),
        "Connections refused since the start.",
    ),
)
