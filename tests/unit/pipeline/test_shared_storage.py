"""Checkpoints of a cluster must be where all its machines see them."""

from __future__ import annotations

import pytest

from headrace.pipeline.shared_files import filesystem_of, storage_problem

MOUNTS = """\
overlay / overlay rw 0 0
/dev/sda1 /data ext4 rw 0 0
server:/export /data/shared nfs4 rw 0 0
fs\\040x /mnt/with\\040space fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("master", "path", "fine"),
    [
        ("local[*]", "/data/a", True),
        ("spark://127.0.0.1:7077", "/data/a", True),
        ("spark://localhost:7077", "/data/a", True),
        ("spark://master:7077", "/data/a", False),
        ("spark://master:7077", "file:///data/a", False),
        ("spark://master:7077", "/data/shared/a", True),
        ("spark://master:7077", "/data/shared2/a", False),
        ("yarn", "/elsewhere", False),
        ("yarn", "hdfs://name/a", True),
        ("k8s://https://host", "s3a://bucket/a", True),
        ("k8s://https://host", "/mnt/with space/a", True),
    ],
)
def test_what_executors_can_see(master: str, path: str, fine: bool) -> None:
    problem = storage_problem(master, path, MOUNTS)
    assert (problem is None) == fine
    if problem is not None:
        assert "shared storage" in problem
        assert path in problem


def test_the_longest_mount_point_counts() -> None:
    assert filesystem_of("/data/shared/x", MOUNTS) == "nfs4"
    assert filesystem_of("/data/sharedx", MOUNTS) == "ext4"
    assert filesystem_of("/x", MOUNTS) == "overlay"
