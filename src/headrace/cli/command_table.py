"""Every command of the first level: where it lives and what `headrace --help` says of it.

A row is enough to list, to complete and to suggest a command; its module is imported when it is
called (`tree.py`).
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """`home` is module:attribute below `headrace.cli`: a command, or a group for a noun."""

    home: str
    sentence: str


SECTIONS: dict[str, dict[str, Entry]] = {
    "Run": {
        "up": Entry("server.up:up", "Run everything on this machine."),
        "down": Entry("server.up:down", "Stop what `headrace up` runs."),
        "demo": Entry("demo:demo", "Show the whole system at work, with a kill and a check."),
        "doctor": Entry("doctor:doctor", "Look for what would keep Headrace from working here."),
        "top": Entry("top.top:top", "Show rates, lag, pipelines and brokers live."),
        "bench": Entry("bench.bench:bench", "Load a broker and measure."),
        "profile": Entry("profiles:app", "Named servers for the other commands."),
        "server": Entry("server.clients:server", "The broker itself."),
    },
    "Messages": {
        "produce": Entry("messages.produce:produce", "Send each line as a message."),
        "consume": Entry("messages.consume:consume", "Print messages."),
        "replay": Entry("transfer.replay:replay", "Send a range of a topic once more."),
        "export": Entry("transfer.exporting:export", "Write messages to a file."),
        "import": Entry("transfer.importing:app", "Move in: topics of others, and files."),
        "dead-letters": Entry("pipeline.dead_letters:app", "Rows that a pipeline set aside."),
    },
    "Topics and consumers": {
        "stream": Entry("topics.streams:app", "Streams: folders of topics."),
        "topic": Entry("topics.topics:app", "Topics: what messages are sent to."),
        "partition": Entry("topics.partitions:app", "Partitions of topics."),
        "segment": Entry("topics.partitions:segments", "Segments: the files of a partition."),
        "group": Entry("topics.groups:app", "Consumer groups and their lag."),
        "offset": Entry("topics.groups:offsets", "Stored offsets of consumers and groups."),
        "client": Entry("server.clients:app", "Connected clients."),
    },
    "Pipelines": {
        "pipeline": Entry("pipeline.change:app", "PySpark code that the controller supervises."),
        "container": Entry("pipeline.inspect:containers", "Processes of a pipeline."),
        "operator": Entry("pipeline.inspect:operators", "Operators of a running pipeline."),
        "window": Entry("pipeline.inspect:windows", "Windows: how far each operator is."),
        "event": Entry("pipeline.inspect:events", "What happened to pipelines."),
        "spark-conf": Entry(
            "pipeline.spark_conf:spark_conf", "Print the Spark settings of pipelines."
        ),
    },
    "Users": {
        "user": Entry("topics.users:app", "Users and what they may do."),
        "permission": Entry("topics.users:permissions", "What users may do, and where."),
        "token": Entry("topics.users:tokens", "Personal access tokens of the user you are."),
    },
    "Cluster": {
        "cluster": Entry("cluster.cluster:app", "Run a local cluster; look at any."),
        "node": Entry("cluster.ranges:nodes", "Data nodes of a cluster."),
        "range": Entry(
            "cluster.ranges:app", "Ranges: stretches of a log stream, with their replicas."
        ),
        "placement-manager": Entry("server.roles:placement_manager", "Run a placement manager."),
        "data-node": Entry("server.roles:data_node", "Run a data node."),
        "broker": Entry("server.roles:broker", "Run a broker."),
        "controller": Entry(
            "server.roles:controller", "Run the pipeline controller and its dashboard."
        ),
    },
    "Data directories": {
        "backup": Entry("backup:backup", "Copy a data directory while it is in use."),
        "restore": Entry("backup:restore", "Bring a backup back into an empty data directory."),
        "verify": Entry("backup:verify", "Read a backup or data directory from end to end."),
        "control-log": Entry("server.control_logs:app", "What damage cost the control state."),
        "upgrade": Entry("backup:upgrade", "Bring a data directory to this release's formats."),
    },
    "Tools": {
        "decode": Entry("decode.decode:decode", "Print frames of the three protocols as text."),
        "wireshark": Entry("wireshark:app", "Teach Wireshark the protocols of Headrace."),
        "observability": Entry("server.observability:app", "Files for Grafana and Prometheus."),
    },
}
COMMANDS: dict[str, Entry] = {
    name: entry for section in SECTIONS.values() for name, entry in section.items()
}
