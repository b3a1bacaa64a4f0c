"""Deployed code is what was submitted, or it does not run."""

from __future__ import annotations

import pytest

from headrace.errors import CorruptionError, InvalidArgumentError, TooLargeError
from headrace.pipeline.plan.packages import MANIFEST, check_files, content_hash, install, verify
from tests.simulator.runtime import SimulatedDisk, SimulatedRandom

FILES = {"shop.py": b"import lib.money\n", "lib/money.py": b"EURO = 1\n"}
FOLDER = "/a/packages/h"


def disk() -> SimulatedDisk:
    return SimulatedDisk(SimulatedRandom(1))


def test_installed_files_verify() -> None:
    place = disk()
    install(place, FOLDER, FILES)
    verify(place, FOLDER, content_hash(FILES))
    assert place.read(f"{FOLDER}/lib/money.py") == b"EURO = 1\n"


def test_a_changed_or_missing_file_is_noticed() -> None:
    place = disk()
    install(place, FOLDER, FILES)
    place.write_atomic(f"{FOLDER}/shop.py", b"print('edited')\n")
    with pytest.raises(CorruptionError, match="was changed"):
        verify(place, FOLDER, content_hash(FILES))
    place.remove(f"{FOLDER}/shop.py")
    with pytest.raises(CorruptionError, match="incomplete"):
        verify(place, FOLDER, content_hash(FILES))


def test_a_half_written_package_is_written_again_and_a_whole_one_is_left_alone() -> None:
    place = disk()
    place.make_folder(FOLDER)
    place.write_atomic(f"{FOLDER}/left_over.py", b"")
    install(place, FOLDER, FILES)
    assert not place.exists(f"{FOLDER}/left_over.py")
    before = len(place.operations)
    install(place, FOLDER, FILES)
    assert [op for op in place.operations[before:] if op[0] == "write"] == []


def test_the_manifest_is_written_last() -> None:
    place = disk()
    install(place, FOLDER, FILES)
    place.remove(f"{FOLDER}/{MANIFEST}")
    with pytest.raises(CorruptionError, match="incomplete"):
        verify(place, FOLDER, content_hash(FILES))


def test_the_hash_tells_apart_what_concatenation_would_not() -> None:
    assert content_hash({"a": b"bc"}) != content_hash({"ab": b"c"})
    assert content_hash({"a": b"", "b": b"x"}) != content_hash({"a": b"x", "b": b""})
    assert content_hash(dict(reversed(FILES.items()))) == content_hash(FILES)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../up.py",
        "a/../../b.py",
        "a//b.py",
        "./a.py",
        "a/",
        "a\\b",
        "a\0b",
        MANIFEST,
        "x" * 300,
    ],
)
def test_paths_stay_inside_the_package(path: str) -> None:
    with pytest.raises(InvalidArgumentError):
        check_files("shop.py", {"shop.py": b"", path: b""}, bytes_max=100)


def test_limits_and_the_entry() -> None:
    check_files("shop.py:app", FILES, bytes_max=100)
    with pytest.raises(TooLargeError):
        check_files("shop.py", FILES, bytes_max=10)
    with pytest.raises(TooLargeError):
        check_files("0", {str(one): b"" for one in range(2_001)}, bytes_max=100)
    with pytest.raises(InvalidArgumentError):
        check_files("other.py", FILES, bytes_max=100)
