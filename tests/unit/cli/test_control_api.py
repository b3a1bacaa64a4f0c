"""Where the control plane is, as people write it, and what they read when it is not there."""

from __future__ import annotations

import pytest

from headrace.cli.advice import advice
from headrace.cli.control_api import Api, null_unknown_windows
from headrace.errors import ConfigError, UnavailableError
from headrace.wire.iggy.errors import Status, error_of
from tests.ports import free_ports


@pytest.mark.parametrize("written", ["{}", "http://{}", "http://{}/"])
def test_an_address_copied_from_a_browser_is_taken(written: str) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(UnavailableError) as caught:
        Api(written.format(address), "iggy", "iggy").get("/pipelines")
    assert str(caught.value).startswith(f"http://{address}: ")
    assert "--http" in advice(caught.value)


def test_https_without_tls_says_what_to_add() -> None:
    with pytest.raises(ConfigError, match="--tls-ca"):
        Api("https://127.0.0.1:3000", "iggy", "iggy")


def test_another_server_that_is_not_there_is_looked_for_by_its_address() -> None:
    assert "--address" in advice(UnavailableError("cannot connect"))


def test_what_a_client_hears_as_a_number_is_explained() -> None:
    assert "`headrace verify`" in advice(error_of(Status.IO_ERROR))
    late = advice(error_of(Status.TASK_TIMEOUT))
    assert "cluster status" in late
    assert "Is the server running" not in late


def test_no_window_is_null() -> None:
    none, some = "f" * 16, "6819fd8000000001"
    view = {"committed_window": none, "operators": [{"window": none}, {"window": some}], "rows": 3}
    assert null_unknown_windows(view) == {
        "committed_window": None, "operators": [{"window": None}, {"window": some}], "rows": 3,
    }  # fmt: skip
