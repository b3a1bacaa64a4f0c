"""What is wrong with the broker and its cluster, in the words of the front page.

`broker_problems` judges and is pure; `BrokerDiagnosis` asks for what it judges: the catalogue and
the groups each time, the cluster now and then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.errors import HeadraceError
from headrace.runtime import Runtime
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.broker_api.groups import GroupWatch
from headrace.web.broker_api.overview import Cluster
from headrace.web.diagnosis.types import Problem, Severity, Subject
from headrace.wire.iggy.messages.system import Stats

CLUSTER_SECONDS = 5.0
SILENT_MS = 20_000  # the broker is asked every five seconds
DISK_SHARE_WARNING = 0.10  # free
DISK_SHARE_CRITICAL = 0.03
GROUP_LAG = 10_000  # messages; below it nobody is woken


def broker_problems(
    stats: Stats | None,
    silent_ms: int,
    *,
    cluster: t.ClusterInfo | None = None,
    groups: Iterable[t.GroupRow] = (),
) -> list[Problem]:
    """What was heard of the broker `silent_ms` ago. None: nothing yet."""
    if stats is None:
        return []
    if silent_ms > SILENT_MS:
        return [_unreachable(silent_ms)]  # all else is of a moment that is over
    found = [*_disk(stats), *_groups(groups)]
    return found if cluster is None else [*found, *_cluster(cluster)]


def _unreachable(silent_ms: int) -> Problem:
    return _problem(
        "broker",
        "broker",
        "unreachable",
        "critical",
        f"The broker has not answered for {silent_ms / 1000:.0f} s",
        "See whether it runs and what its log says; `headrace doctor` looks at ports and disk.",
    )


def _problem(
    subject: Subject,
    name: str,
    kind: str,
    severity: Severity,
    title: str,
    next_step: str,
    detail: str = "",
) -> Problem:
    return Problem(
        id=f"{subject}/{name}/{kind}",
        kind=kind,
        severity=severity,
        subject=subject,
        name=name,
        title=title,
        detail=detail,
        next_step=next_step,
    )


def _cluster(cluster: t.ClusterInfo) -> Iterator[Problem]:
    for node in cluster.data_nodes:
        if not node.alive and (node.address or node.ranges):  # else it was replaced
            yield _problem(
                "node",
                str(node.id),
                "node down",
                "critical",
                f"Data node {node.id} at {node.address} is down",
                "Start it again. Its ranges are copied to other nodes meanwhile, if there are"
                " enough.",
                f"{node.ranges} ranges have a replica there",
            )
        if node.quarantined_ranges:
            yield _problem(
                "node",
                str(node.id),
                "ranges kept aside",
                "critical",
                f"Data node {node.id} keeps {node.quarantined_ranges:,} ranges aside that the"
                " placement manager does not know",
                "See `headrace range quarantined`; bring the newer metadata back, or"
                " `headrace range give-back`. They are removed after"
                " advanced.data_node.quarantine_ms.",
            )
    if cluster.metadata_seen > cluster.metadata_version >= 0:
        yield _problem(
            "node",
            "metadata",
            "metadata outdated",
            "critical",
            "The placement metadata is older than what data nodes have seen",
            "Nothing is decided on it. Bring the newer metadata back, or go on with this one:"
            " `headrace cluster accept-metadata`.",
        )
    for text in cluster.ranges_torn:
        what, _, remedy = text.partition("; ")
        yield _problem(
            "range",
            what.partition(":")[0],
            "end missing",
            "critical",
            what[:1].upper() + what[1:],
            "Bring the node back if its disk lives. Otherwise " + remedy + ".",
        )
    if cluster.ranges_unavailable > len(cluster.ranges_torn):
        yield _problem(
            "range",
            "all",
            "unavailable",
            "critical",
            f"{cluster.ranges_unavailable:,} ranges cannot be read whole: no living replica has all"
            " of them",
            "Bring back one of the nodes that hold them; nothing is lost while their disks live.",
        )
    if cluster.ranges_under_replicated:
        yield _problem(
            "range",
            "all",
            "under-replicated",
            "warning",
            f"{cluster.ranges_under_replicated:,} ranges have fewer replicas than they should",
            "It heals by itself once enough nodes are alive; add or restart a data node.",
        )
    yield from _managers(cluster)
    yield from _standbys(cluster)


def _managers(cluster: t.ClusterInfo) -> Iterator[Problem]:
    for one in cluster.placement_managers:
        if one.state in ("silent", "unreachable"):
            yield _problem(
                "node",
                one.address,
                "manager down",
                "warning",
                f"Placement manager {one.address} does not answer",
                "Start it again: until then the cluster survives one loss less.",
            )
    if cluster.placement_managers and all(
        one.state != "leader" for one in cluster.placement_managers
    ):
        yield _problem(
            "node",
            "leader",
            "no leader",
            "critical",
            "No placement manager leads",
            "Topics cannot be made and ranges cannot be moved: see whether etcd answers.",
        )


def _standbys(cluster: t.ClusterInfo) -> Iterator[Problem]:
    several = len(cluster.data_nodes) > 1
    standbys = [one for one in cluster.brokers if one.role != "leader"]
    if several and cluster.brokers and not standbys:
        yield _problem(
            "broker",
            "standby",
            "standby missing",
            "warning",
            "There is no standby broker",
            "Start a second one: clients wait until this one is back when it goes down.",
        )


def _disk(stats: Stats) -> Iterator[Problem]:
    if not stats.total_disk_space:
        return
    share = stats.free_disk_space / stats.total_disk_space
    if share > DISK_SHARE_WARNING:
        return
    free = stats.free_disk_space / (1 << 30)
    yield _problem(
        "node",
        stats.hostname,
        "disk nearly full",
        "critical" if share <= DISK_SHARE_CRITICAL else "warning",
        f"The disk of {stats.hostname} is nearly full: {free:.1f} GiB are left",
        "Shorten the retention of large topics, delete what nobody needs, or add space:"
        " a full disk refuses all new messages.",
        f"{share:.0%} free",
    )


def _groups(groups: Iterable[t.GroupRow]) -> Iterator[Problem]:
    for one in groups:
        lag = one.lag or 0
        if lag < GROUP_LAG or one.lag_per_second < 0:
            continue
        away = one.members == 0
        if not away and one.lag_per_second == 0:
            continue
        yield _problem(
            "group",
            f"{one.stream}/{one.topic}/{one.name}",
            "group lags",
            "notice" if away else "warning",
            f"Group {one.name} is {lag:,} messages behind on {one.stream}/{one.topic}",
            "Nobody reads for it: start its consumers, or delete the group."
            if away
            else "It reads slower than messages arrive: add members, up to one per partition.",
            f"{one.members} members, lag grows by {one.lag_per_second:,.0f} a second",
        )


class BrokerDiagnosis:
    def __init__(
        self, runtime: Runtime, catalogue: Catalogue, groups: GroupWatch, cluster: Cluster
    ) -> None:
        self._clock = runtime.clock
        self._catalogue = catalogue
        self._groups = groups
        self._cluster = cluster
        self._described: t.ClusterInfo | None = None
        self._ask_at = 0.0

    async def look(self) -> list[Problem]:
        if self._clock.monotonic() >= self._ask_at:
            await self._describe()
        return broker_problems(
            self._catalogue.stats,
            self._clock.now_ms() - self._catalogue.sampled_ms,
            cluster=self._described,
            groups=[one.row() for one in self._groups.groups.values()],
        )

    async def _describe(self) -> None:
        self._ask_at = self._clock.monotonic() + CLUSTER_SECONDS
        try:
            self._described = await self._cluster.describe()
        except HeadraceError:
            self._described = None  # nobody answers: the broker's silence says so
