"""headrace backup, restore, verify, upgrade: what to do with a data directory as a whole.

A data directory comes in, running or stopped; a folder with a copy of one moment and its
`backup.json` goes out, and the way back. `taking.py` makes the copy and
brings it back, `data_directory.py` verifies and migrates. Begin to read in `taking.py`.
"""

from __future__ import annotations

from pathlib import Path

import click

from headrace.cli.declare import argument, command, json_option, option
from headrace.cli.output import byte_progress, print_fields, print_json
from headrace.observability.escaping import note

DATA_DIR = "headrace-data"
data_dir_option = option("--data-dir", default=DATA_DIR, help="Of `headrace up`, or of one role.")


@command("backup")
@argument(
    "target", type=click.Path(path_type=Path), metavar="BACKUP", help="A folder that is not there."
)
@data_dir_option
@option(
    "--link",
    is_flag=True,
    help="Share finished segments with the data directory instead of copying.",
)
@json_option
def backup(target: Path, data_dir: str, link: bool, as_json: bool) -> None:
    """Copy a data directory while it is in use: everything acknowledged before is in the copy.

    Metadata, log and pipelines' checkpoints are taken so that they belong together. --link needs
    the same file system; copy such a backup elsewhere before you call it one.
    """
    from headrace.cli.backup.taking import bytes_in, take

    with byte_progress("backup", bytes_in(Path(data_dir))) as progress:
        made = take(Path(data_dir), target, link=link, progress=progress)
    if made.moved:
        note("the state never stood still: pipelines may publish a window again after a restore")
    fields = {
        "backup": str(target), "files": len(made.manifest.files), "bytes": made.manifest.bytes,
        "tries": made.tries,
    }  # fmt: skip
    print_fields(fields, as_json=as_json)


@command("restore")
@argument("source", type=click.Path(path_type=Path), metavar="BACKUP", help="What `backup` made.")
@data_dir_option
@json_option
def restore(source: Path, data_dir: str, as_json: bool) -> None:
    """Bring a backup back into an empty data directory; every file is checked on the way.

    Then start it as ever: `headrace up --data-dir DIR`. Never start the copy while the original
    runs: the two are one cluster to every client.
    """
    from headrace.cli.backup.manifest import load
    from headrace.cli.backup.taking import bring_back

    with byte_progress("restore", load(source).bytes) as progress:
        manifest = bring_back(source, Path(data_dir), progress)
    fields = {
        "data_dir": data_dir, "files": len(manifest.files), "bytes": manifest.bytes,
        "taken": manifest.created,
    }  # fmt: skip
    print_fields(fields, as_json=as_json)


@command("verify")
@argument(
    "path", type=click.Path(path_type=Path), metavar="PATH", help="A backup or a data directory."
)
@json_option
def verify(path: Path, as_json: bool) -> None:
    """Read a backup, or a data directory that nobody uses, from end to end and say what is wrong.

    Every checksum, the end of every range, and metadata against data. Exit 0 only if all is well.
    """
    from headrace.cli.backup.data_directory import examine
    from headrace.cli.backup.taking import bytes_in

    with byte_progress("verify", bytes_in(path)) as progress:
        report = examine(path, progress)
    if as_json:
        print_json(report.to_json())
    else:
        print_fields(report.counts(), as_json=False)
        for text in report.notes:
            print(f"note     {text}")
        for text in report.problems:
            print(f"problem  {text}")
        print("sound" if not report.problems else f"{len(report.problems)} problems")
    if report.problems:
        raise click.exceptions.Exit(1)


@command("upgrade")
@data_dir_option
@option("--check", is_flag=True, help="Only say what would be done; exit 1 if anything.")
@json_option
def upgrade(data_dir: str, check: bool, as_json: bool) -> None:
    """Bring a data directory that nobody uses to the formats of this release; a start does so too.

    Take a backup first: a directory that was migrated cannot be opened by the release before.
    """
    from headrace.cli.backup.data_directory import bring_up_to_date
    from headrace.cli.output import print_rows

    parts = bring_up_to_date(Path(data_dir), check=check)
    print_rows(parts, ("part", "found", "known", "outcome"), as_json=as_json)
    if check and any(part["found"] != part["known"] for part in parts):
        raise click.exceptions.Exit(1)
