"""Where the settings file has the settings that few change, and what is said of misplaced ones."""

from __future__ import annotations

import pytest

from headrace.config.advanced import OPERATOR, place_in_file
from headrace.config.settings import Settings, parse_settings
from headrace.errors import ConfigError


def parsed(file: str, **overrides: object) -> tuple[Settings, list[str]]:
    lines: list[str] = []
    return parse_settings(file.encode(), overrides, lines.append), lines


def refusal(file: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_settings(file.encode(), {})
    return str(caught.value)


def test_advanced_settings_stand_under_advanced() -> None:
    settings, lines = parsed(
        "[advanced]\nplain_streams = true\n"
        '[broker]\ndurability = "written"\n'
        "[advanced.broker]\nlease_ms = 700\n"
        '[placement.etcd]\nusername = "us"\n'
        "[advanced.placement.etcd]\ntimeout_ms = 70\n"
    )
    assert lines == []
    assert settings.plain_streams
    assert (settings.broker.durability, settings.broker.lease_ms) == ("written", 700)
    etcd = settings.placement.etcd
    assert (etcd.username, etcd.timeout_ms) == ("us", 70)
    assert place_in_file("broker.lease_ms") == "advanced.broker.lease_ms"
    assert place_in_file("broker.durability") == "broker.durability"


def test_a_setting_at_its_old_place_is_taken_with_a_line_that_says_where_it_belongs() -> None:
    settings, lines = parsed(
        'plain_streams = true\n[broker]\nlease_ms = 700\ndurability = "written"\nidle_ms = 5\n'
        "[placement.etcd]\ntimeout_ms = 70\n"
    )
    assert (settings.broker.lease_ms, settings.broker.idle_ms) == (700, 5)
    assert (settings.placement.etcd.timeout_ms, settings.plain_streams) == (70, True)
    assert lines == [
        "settings: plain_streams belongs under [advanced] now (found at the top of the file)",
        "settings: lease_ms, idle_ms belong under [advanced.broker] now (found under [broker])",
        "settings: timeout_ms belongs under [advanced.placement.etcd] now"
        " (found under [placement.etcd])",
    ]


def test_an_operators_setting_under_advanced_is_taken_too() -> None:
    settings, lines = parsed(
        '[advanced.broker]\ndurability = "written"\n[advanced]\nhost = "::1"\n'
    )
    assert (settings.broker.durability, settings.host) == ("written", "::1")
    assert lines == [
        "settings: durability belongs under [broker] now (found under [advanced.broker])",
        "settings: host belongs at the top of the file now (found under [advanced])",
    ]


def test_flags_win_over_both_places_and_are_no_reason_for_a_line() -> None:
    settings, lines = parsed("[advanced]\nplain_streams = true\n", plain_streams=False)
    assert (settings.plain_streams, lines) == (False, [])


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (
            "[broker]\nlease_ms = 700\n[advanced.broker]\nlease_ms = 800\n",
            "lease_ms is given twice",
        ),
        ("[advanced.data_node]\nfetch = 1\n", "advanced.data_node.fetch: there is no such setting"),
        ("[advanced.brokers]\nlease_ms = 1\n", "advanced.brokers: there is no such setting"),
        ("[advanced]\nbroker = 1\n", "advanced.broker: there is no such setting"),
        ("advanced = 1\n", "advanced must be a table"),
        ("broker = 1\n[advanced.broker]\nlease_ms = 700\n", "broker must be a table"),
        ("[advanced.broker]\nlease_ms = 7\n", "lease_ms"),
        ("[broker]\nlease = 7\n", "lease"),
    ],
)
def test_what_is_refused(file: str, said: str) -> None:
    assert said in refusal(file)


def test_the_operators_settings_exist_and_are_few() -> None:
    def names(section: object, prefix: str = "") -> set[str]:
        found = set()
        for name in getattr(section, "__struct_fields__", ()):
            inner = names(getattr(section, name), f"{prefix}{name}.")
            found |= inner or {f"{prefix}{name}"}
        return found

    assert names(Settings()) >= OPERATOR
    assert len(OPERATOR) < 50


@pytest.mark.parametrize("section", ["broker", "advanced.broker"])
def test_the_two_bounds_of_before_are_taken_as_their_sum(section: str) -> None:
    settings, lines = parsed(f"[{section}]\nread_ahead_bytes_max = 1000\n")
    assert settings.broker.poll_cache_bytes_max == 1000 + (64 << 20)
    assert "advanced.broker.poll_cache_bytes_max" in lines[0]
    settings, _ = parsed(f"[{section}]\nread_ahead_bytes_max = 1000\nconverted_bytes_max = 24\n")
    assert settings.broker.poll_cache_bytes_max == 1024


def test_the_one_bound_wins_over_those_of_before() -> None:
    settings, lines = parsed(
        "[broker]\nconverted_bytes_max = 24\n[advanced.broker]\npoll_cache_bytes_max = 7\n"
    )
    assert settings.broker.poll_cache_bytes_max == 7
    assert "left out" in lines[0]
    assert "number of bytes" in refusal('[broker]\nconverted_bytes_max = "much"\n')
