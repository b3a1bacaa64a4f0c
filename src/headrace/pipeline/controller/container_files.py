"""What an application's containers leave on disk for people: their logs
(`<application path>/logs/<container id>.log`) and the sample rows of recordings
(`<application path>/recordings/<id>/<window>.jsonl`). Every function here blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.errors import NotFoundError
from headrace.pipeline.controller.views import RecordedWindow
from headrace.runtime.interfaces import Disk

LOGS_MAX = 10  # log files kept per application and container
AROUND_BYTES = 8 * 1024  # of a log, shown beside an error


def make_room(disk: Disk, folder: str, containers: int) -> None:
    """Before one more is written. Blocks."""
    disk.make_folder(folder)
    for old in log_files(disk, folder)[: -LOGS_MAX * containers + 1]:
        disk.remove(f"{folder}/{old}")


def last_lines(disk: Disk, folder: str, lines: int, *, bytes_max: int) -> str:
    """The newest container's last. Blocks."""
    text = ""
    for file in reversed(log_files(disk, folder)):
        text = _tail(disk, f"{folder}/{file}", bytes_max) + text
        if text.count("\n") >= lines:
            break
    return "".join(text.splitlines(keepends=True)[-lines:])


def last_lines_of(disk: Disk, folder: str, container_id: str, lines: int, *, bytes_max: int) -> str:
    """Of one container. Blocks."""
    text = _tail(disk, _file_of(disk, folder, container_id), bytes_max)
    return "".join(text.splitlines(keepends=True)[-lines:])


def lines_before(disk: Disk, folder: str, container_id: str, offset: int) -> str:
    """What a container wrote last before a place in its log, in whole lines. Blocks."""
    file = disk.open(_file_of(disk, folder, container_id))
    try:
        end = min(max(0, offset), file.size())
        start = max(0, end - AROUND_BYTES)
        text = file.pread(end - start, start).decode("utf-8", "replace")
    finally:
        file.close()
    return text.partition("\n")[2] if start else text


def _file_of(disk: Disk, folder: str, container_id: str) -> str:
    # Only what is there: an id with a path in it names nothing.
    if f"{container_id}.log" not in disk.list(folder):
        raise NotFoundError("no log of such a container", container_id=container_id)
    return f"{folder}/{container_id}.log"


def log_files(disk: Disk, folder: str) -> Sequence[str]:
    """Oldest first: a container's id ends with its run."""
    return sorted(
        (name for name in disk.list(folder) if name.endswith(".log")),
        key=lambda name: int(name.removesuffix(".log").rpartition(".")[2]),
    )


def _tail(disk: Disk, path: str, bytes_max: int) -> str:
    try:
        file = disk.open(path)
    except NotFoundError:
        return ""
    try:
        data = file.pread(bytes_max, max(0, file.size() - bytes_max))
    finally:
        file.close()
    return data.decode("utf-8", "replace")


FILES_MAX = 10_000  # read at a time, the newest


def read_recording(disk: Disk, path: str, recording: str) -> list[RecordedWindow]:
    """Blocks. NotFoundError when no container has written a window yet."""
    folder = f"{path}/{recording}"
    # Only what is there: an id with a path in it, or what is no file's name, names nothing.
    known = recording in disk.list(path)
    names = [name for name in disk.list(folder) if name.endswith(".jsonl")] if known else []
    if not names:
        raise NotFoundError("nothing is recorded (yet)", recording=recording)
    return [
        RecordedWindow(
            window=name.removesuffix(".jsonl"),
            rows=[json.loads(line) for line in disk.read(f"{folder}/{name}").splitlines()],
        )
        for name in sorted(names)[-FILES_MAX:]
    ]
