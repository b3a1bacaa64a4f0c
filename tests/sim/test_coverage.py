"""Which test stands for each failure scenario, upstream defect and invariant of the SBP reference.

The numbers are those of the reference (§10, §14, §11). A row without a test, or whose test is gone,
fails here; the tests themselves say what is expected.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIM = "tests/sim/test_scenarios_"
RULES = "tests/unit/net/test_sbp_rules.py"
PLACEMENT = "tests/unit/placement/test_"
REPLICATION = "tests/integration/test_replication.py"
RECOVERY = "tests/unit/storage/range/test_recovery.py"

SCENARIOS: dict[int, tuple[str, ...]] = {
    1: (f"{SIM}replication.py::test_f01_primary_dies_with_appends_in_flight",),
    2: (f"{SIM}replication.py::test_f02_secondary_dies_and_is_replaced",),
    3: (
        f"{SIM}replication.py::test_f03_quorum_lost_moves_to_other_nodes",
        f"{SIM}replication.py::test_f03_quorum_lost_without_a_spare_node_waits",
    ),
    4: (f"{SIM}replication.py::test_f04_tail_on_one_survivor_only",),
    5: (
        f"{SIM}replication.py::test_f05_isolated_primary_acknowledges_nothing",
        f"{SIM}replication.py::test_f05_a_seal_outlives_a_restart",
    ),
    6: (f"{SIM}replication.py::test_f06_all_replicas_restart_then_seal",),
    7: (
        f"{SIM}replication.py::test_f07_replica_comes_back_with_an_empty_disk",
        f"{SIM}replication.py::test_f07_a_store_under_a_known_id_with_other_contents_is_refused",
    ),
    8: (
        f"{SIM}managers.py::test_f08_leader_dies_between_the_seals_and_the_commit",
        f"{SIM}managers.py::test_f08_a_leader_that_stalls_in_a_write_changes_nothing",
    ),
    9: (f"{SIM}managers.py::test_f09_a_repeated_seal_gets_the_same_range",),
    10: (f"{SIM}managers.py::test_f10_two_clients_seal_the_same_range",),
    11: (
        f"{SIM}managers.py::test_f11_append_to_a_range_that_has_a_successor",
        f"{SIM}managers.py::test_f11_a_late_sync_does_not_open_a_range_again",
    ),
    12: (f"{SIM}replication.py::test_f12_crash_after_the_write_before_the_acknowledgement",),
    13: (
        f"{RECOVERY}::test_a_torn_tail_is_cut_off",
        f"{RECOVERY}::test_a_flipped_bit_in_the_last_group_after_kill_is_corruption",
        "tests/property/test_storage_power_cut.py::"
        "test_nothing_acknowledged_is_lost_and_nothing_is_invented",
    ),
    14: (
        f"{SIM}clients.py::test_f14_a_flipped_bit_is_served_by_another_replica_and_repaired",
        f"{RECOVERY}::test_damage_below_a_later_mark_is_corruption",
    ),
    15: (
        f"{SIM}clients.py::test_f15_a_full_replica_is_left_for_another_node",
        f"{SIM}clients.py::test_f15_a_full_primary_does_not_say_that_its_range_is_the_last",
    ),
    16: (f"{SIM}replication.py::test_f16_slow_replica_does_not_slow_the_quorum",),
    17: (f"{SIM}clients.py::test_f17_a_fetch_at_the_end_waits_for_data_or_its_time",),
    18: (f"{SIM}clients.py::test_f18_a_reader_crosses_seals",),
    19: (
        f"{SIM}clients.py::test_f19_trim_below_and_above_a_reader",
        f"{SIM}clients.py::test_f19_a_late_trim_does_not_move_back",
    ),
    20: (f"{SIM}managers.py::test_f20_delete_during_append",),
    21: (f"{SIM}managers.py::test_f21_a_follower_names_the_leader",),
    22: (f"{SIM}managers.py::test_f22_without_managers_existing_ranges_go_on",),
    23: (f"{SIM}clients.py::test_f23_goaway_in_a_window_of_64",),
    24: (
        f"{SIM}clients.py::test_f24_a_fetch_of_many_streams_is_told_apart",
        "tests/unit/wire/sbp/test_multipart.py::test_fetch_answers_of_any_shape",
    ),
    25: (
        "tests/integration/test_sbp_malformed.py::test_malformed_frames_cost_nobody_else_anything",
        "tests/integration/test_sbp_malformed.py::test_promised_bytes_take_no_memory",
        f"{RULES}::test_f25_i17_malformed_frames_end_their_own_connection_only",
    ),
    26: (f"{SIM}managers.py::test_f26_ids_are_unique_across_failovers",),
    27: (
        f"{SIM}managers.py::"
        "test_f27_a_node_silent_for_longer_than_the_idle_timeout_registers_again",
        f"{RULES}::test_f27_a_silence_longer_than_the_idle_limit_loses_no_registration",
    ),
    28: (f"{SIM}replication.py::test_f28_recovery_decides_by_seals_not_by_reads",),
    29: (f"{SIM}replication.py::test_f29_primary_crashes_before_its_own_sync",),
}

DEFECTS: dict[int, tuple[str, ...]] = {
    1: (f"{RULES}::test_defect_1_two_frames_in_one_buffer_are_both_served",),
    2: ("tests/unit/wire/sbp/test_records.py::test_base_offset_is_patched_at_byte_1_big_endian",),
    3: (
        "tests/unit/datanode/replication/test_commitment.py::"
        "test_commits_of_batches_with_many_records_do_not_get_stuck",
    ),
    4: (f"{REPLICATION}::test_f6_f29_all_restart_and_nothing_is_forgotten_or_reused",),
    5: (f"{REPLICATION}::test_a_second_seal_gives_the_same_answer",),
    6: (f"{REPLICATION}::test_results_name_their_stream_and_index_and_time",),
    7: (f"{RULES}::test_defect_7_batch_length_is_bytes_not_a_count",),
    8: (f"{REPLICATION}::test_describe_tells_the_next_offset",),
    9: (f"{RULES}::test_defect_9_unknown_opcodes_are_ignored_and_bad_headers_answered",),
    10: (
        f"{PLACEMENT}sealing.py::"
        "test_defect_10_the_minimum_of_any_answers_would_lose_acknowledged_records",
    ),
    11: (
        f"{PLACEMENT}rules.py::test_defect_11_update_never_creates",
        f"{PLACEMENT}sealing.py::test_defect_11_a_sealed_stream_is_listed_by_node_whole",
    ),
    12: (
        f"{RULES}::test_defect_12_heartbeats_come_three_times_within_the_idle_limit",
        f"{PLACEMENT}rules.py::"
        "test_defect_12_heartbeats_come_three_times_before_a_node_counts_as_lost",
    ),
    13: (
        f"{RULES}::test_defect_13_late_and_unknown_requests_leave_nothing_behind",
        f"{PLACEMENT}rules.py::test_defect_13_what_never_ends_leaves_nothing_behind",
    ),
    14: (f"{RULES}::test_defect_14_a_header_longer_than_the_frame_harms_nobody",),
    15: (f"{REPLICATION}::test_f7_a_wiped_disk_does_not_answer_for_the_old_one",),
    16: (
        "tests/unit/sbp_client/test_producer.py::"
        "test_upstream_defect_16_already_durable_counts_as_success",
        f"{REPLICATION}::test_replicas_that_differ_stop_the_range",
    ),
    17: (f"{REPLICATION}::test_secondaries_serve_what_is_committed",),
    18: (f"{PLACEMENT}rules.py::test_defect_18_what_is_over_is_really_removed",),
    19: (f"{RULES}::test_defect_19_a_goaway_with_any_reason_is_a_goaway",),
    20: (f"{REPLICATION}::test_results_name_their_stream_and_index_and_time",),
}

SEEDS = "tests/sim/test_seeds.py::test_no_seed_breaks_an_invariant"

INVARIANTS: dict[int, tuple[str, ...]] = {
    **dict.fromkeys((*range(1, 15), 16, 18), (SEEDS,)),
    15: (f"{RULES}::test_i15_exactly_one_terminal_frame_per_request", SEEDS),
    17: (
        f"{RULES}::test_f25_i17_malformed_frames_end_their_own_connection_only",
        "tests/integration/test_sbp_malformed.py::test_promised_bytes_take_no_memory",
    ),
}

TABLES = {"F": (SCENARIOS, 29), "D": (DEFECTS, 20), "I": (INVARIANTS, 18)}


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("letter", TABLES)
def test_every_number_has_its_tests(letter: str) -> None:
    table, count = TABLES[letter]
    assert sorted(table) == list(range(1, count + 1))
    missing = [
        f"{letter}{number}: {test}"
        for number, tests in table.items()
        for test in tests or ("no test",)
        if "::" not in test
        or not (ROOT / test.partition("::")[0]).exists()
        or test.partition("::")[2] not in names_in(test.partition("::")[0])
    ]
    assert not missing
