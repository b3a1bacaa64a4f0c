"""What containers get, and which plans do not fit a machine."""

from __future__ import annotations

import pytest

from headrace.config.controller import ControllerSettings
from headrace.errors import ConfigError, InvalidArgumentError, TooLargeError
from headrace.pipeline.controller.submission import check_storage
from headrace.pipeline.plan.logical import LogicalPlan, Operator
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.pipeline.plan.resources import (
    DRIVER_MB,
    JVM_BESIDE_HEAP_MB,
    Resources,
    check_memory,
    container_resources,
    needed_mb,
)

SETTINGS = ControllerSettings(container_heap_mb=1_000, container_workers_mb=500, container_cores=2)
BESIDE = JVM_BESIDE_HEAP_MB + DRIVER_MB


def plan(**attributes: int) -> LogicalPlan:
    alone = Operator("alone", isolate=True, attributes=attributes)
    return LogicalPlan("shop", (Operator("a"), Operator("b"), alone))


def test_fused_operators_share_what_a_container_gets() -> None:
    physical = make_physical_plan(plan(MEMORY_MB=3_000, VCORES=1))
    assert container_resources(physical, 0, SETTINGS) == Resources(1_000, 500, 2)
    assert container_resources(physical, 1, SETTINGS) == Resources(3_000, 500, 1)
    assert needed_mb(physical, SETTINGS) == 1_500 + 3_500 + 2 * BESIDE


def test_a_plan_that_does_not_fit_is_refused_with_the_sum() -> None:
    physical = make_physical_plan(plan())
    need = 2 * (1_500 + BESIDE)
    check_memory(physical, SETTINGS, machine_mb=need, taken_mb=0)
    with pytest.raises(TooLargeError, match=f"= {need} MB.*has {need} MB"):
        check_memory(physical, SETTINGS, machine_mb=need, taken_mb=1)


def test_an_amount_is_a_number() -> None:
    physical = make_physical_plan(plan(MEMORY_MB=-1))
    with pytest.raises(InvalidArgumentError):
        container_resources(physical, 1, SETTINGS)


@pytest.mark.parametrize("master", ["local", "spark://localhost:7077"])
def test_on_one_machine_any_folder_will_do(master: str) -> None:
    check_storage(ControllerSettings(master=master))


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host:6443"])
def test_on_a_cluster_checkpoints_are_on_shared_storage(master: str) -> None:
    with pytest.raises(ConfigError, match="shared_path"):
        check_storage(ControllerSettings(master=master))
    check_storage(ControllerSettings(master=master, shared_path="/mnt/shared"))
