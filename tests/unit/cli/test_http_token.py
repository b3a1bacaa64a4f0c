"""Which files the command line reads because a server names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.http_call import find_token

TOKEN = "0a" * 32


def test_a_token_of_ours_is_found_where_a_local_server_says(tmp_path: Path) -> None:
    file = tmp_path / "http-token"
    file.write_text(TOKEN + "\n")
    for url in ("http://127.0.0.1:3000/api", "https://localhost/api", "http://[::1]:3000/api"):
        assert find_token(url, str(file)) == TOKEN
    assert find_token("http://192.0.2.1:3000/api", str(file)) == "", "it would go to a stranger"


def test_nothing_else_is_read_whatever_a_server_says(tmp_path: Path) -> None:
    url = "http://127.0.0.1:3000/api"
    secret = tmp_path / "id_rsa"
    secret.write_text(TOKEN)
    link = tmp_path / "http-token"
    link.symlink_to(secret)
    other = tmp_path / "other"
    other.mkdir()
    (other / "http-token").write_text("a password of somebody")
    files = (secret, link, other / "http-token", "/http-token", "")
    for path in (*map(str, files), None, 7, ["http-token"]):
        assert find_token(url, path) == "", path


def test_a_pipe_does_not_hold_the_command_up(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "http-token")
    assert find_token("http://127.0.0.1:1/", str(tmp_path / "http-token")) == ""


@pytest.mark.skipif("__import__('os').getuid() != 0", reason="only root gives files away")
def test_anothers_file_is_not_read(tmp_path: Path) -> None:
    import os

    file = tmp_path / "http-token"
    file.write_text(TOKEN)
    os.chown(file, 12345, 12345)
    assert find_token("http://127.0.0.1:1/", str(file)) == ""
