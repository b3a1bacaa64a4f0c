"""Whether checkpoints are where every machine of a Spark cluster can read and write them."""

from __future__ import annotations

from collections.abc import Iterable

_NETWORK = ("nfs", "cifs", "smb", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "9p", "fuse.")
_LOOPBACK = ("localhost", "127.", "[::1]", "::1")


def storage_problem(master: str, path: str, mounts: str) -> str | None:
    """What is wrong with `path` for this Spark master; `mounts` is the text of /proc/mounts."""
    if is_local(master):
        return None
    scheme, colon, rest = path.partition("://")
    if colon and scheme != "file":
        return None
    kind = filesystem_of(rest if colon else path, mounts)
    if kind.startswith(_NETWORK):
        return None
    return (
        f"executors of {master} cannot see checkpoints in {path} ({kind or 'a local disk'}): use a "
        "folder on shared storage (NFS, or an address like hdfs:// or s3a://)"
    )


def is_local(master: str) -> bool:
    """Everything runs on this machine: `local[*]`, or a cluster that only it can reach."""
    if master.startswith("local"):
        return True
    return master.startswith("spark://") and master.removeprefix("spark://").startswith(_LOOPBACK)


def filesystem_of(path: str, mounts: str) -> str:
    """The type of the file system that holds `path`; the longest mount point wins."""
    best, kind = "", ""
    for point, type_ in _mount_points(mounts):
        inside = path == point or path.startswith(f"{point.rstrip('/')}/")
        if inside and len(point) >= len(best):
            best, kind = point, type_
    return kind


def _mount_points(mounts: str) -> Iterable[tuple[str, str]]:
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 3:
            yield fields[1].replace("\\040", " "), fields[2]
