"""A backup back into a data directory. The log's `format.json` comes last: a directory that lacks
it is refused at start, so that half a restore is not taken for a whole one."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.backup.manifest import MANIFEST, Manifest, Progress, copy, load, sync_folder
from headrace.cli.backup.taking import LOG
from headrace.errors import AlreadyExistsError, CorruptionError
from headrace.storage.folder import FORMAT_FILE


def bring_back(source: Path, data_dir: Path, progress: Progress) -> Manifest:
    manifest = load(source)
    if data_dir.exists() and any(data_dir.iterdir()):
        raise AlreadyExistsError(f"{data_dir} is not empty; restore into a new directory")
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    last = f"{LOG}/{FORMAT_FILE}"
    for name in sorted(manifest.files, key=lambda each: (each == last, each)):
        kept = manifest.files[name]
        try:
            found = copy(
                source / name, data_dir / name, bytes_max=kept.bytes + 1, mode=kept.mode,
                progress=progress,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise CorruptionError("the backup lacks a file", path=str(source / name)) from error
        if (found.bytes, found.crc32c) != (kept.bytes, kept.crc32c):
            raise CorruptionError(
                f"a file of the backup is not what {MANIFEST} says; restore another backup into "
                "another directory",
                path=str(source / name),
            )
    for folder in {data_dir, *((data_dir / name).parent for name in manifest.files)}:
        sync_folder(folder)
    return manifest
