"""The cluster of a Slurm job, out of Slurm's variables."""

import pytest

from a3c.cluster import which_task
from a3c.cluster.topology import Task
from a3c.cluster.which_task import place_by_slurm
from a3c.config import ClusterConfig
from a3c.errors import UserError

TRUSTED = ClusterConfig(trusted_network=True)
STEP = {
    "SLURM_STEP_NODELIST": "rack[1-2]n[08-09]",
    "SLURM_STEP_NUM_TASKS": "10",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),2(x2)",
    "SLURM_PROCID": "4",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "157",
    # Of the job around it, which may be larger.
    "SLURM_JOB_NODELIST": "rack[1-9]n08",
    "SLURM_NTASKS": "90",
    "SLURM_TASKS_PER_NODE": "10(x9)",
}


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n7", ["n7"]),
        ("n[08-10],gpu-1", ["n08", "n09", "n10", "gpu-1"]),
        ("n[1,3-4]-ib", ["n1-ib", "n3-ib", "n4-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[9-10]", ["n9", "n10"]),
    ],
)
def test_host_lists_are_expanded_as_slurm_writes_them(text: str, hosts: list[str]) -> None:
    assert which_task.expand_hosts(text) == hosts


def test_the_first_tasks_are_the_ps_and_ports_count_up_on_each_node() -> None:
    cluster, task = place_by_slurm(STEP, TRUSTED)
    base = 10_000 + 128  # jobs 1, 157, 313 ... have these
    assert cluster.ps == (f"rack1n08:{base}",)
    assert cluster.workers == (
        *(f"rack1n08:{base + i}" for i in (1, 2)),
        *(f"rack1n09:{base + i}" for i in (0, 1, 2)),
        *(f"rack2n08:{base + i}" for i in (0, 1)),
        *(f"rack2n09:{base + i}" for i in (0, 1)),
    )
    assert task == Task("worker", 3)
    settings = ClusterConfig(trusted_network=True, ps=2, base_port=7000)
    second = {"SLURM_PROCID": "1", "SLURM_NODEID": "0", "SLURM_DISTRIBUTION": "block:cyclic"}
    cluster, task = place_by_slurm(STEP | second, settings)
    assert (cluster.ps, task) == (("rack1n08:7000", "rack1n08:7001"), Task("ps", 1))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"SLURM_STEP_NODELIST": "n[1-"}, "host list"),
        ({"SLURM_STEP_NODELIST": "n[4-1]"}, "host list"),
        ({"SLURM_STEP_NODELIST": "n[1-99999999]"}, "host list"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3(x"}, "tasks per node"),
        ({"SLURM_STEP_TASKS_PER_NODE": "10"}, "10 tasks are not 10 on 1 of 4 nodes"),
        ({"SLURM_STEP_NUM_TASKS": "ten"}, "SLURM_STEP_NUM_TASKS 'ten' is not a number"),
        ({"SLURM_PROCID": "10"}, "task 10 of 10 has no place"),
        (
            {
                "SLURM_STEP_NODELIST": "n1",
                "SLURM_STEP_NUM_TASKS": "1",
                "SLURM_STEP_TASKS_PER_NODE": "1",
                "SLURM_PROCID": "0",
            },
            "task 0 of 1 has no place with 1 ps: give srun --ntasks=2",
        ),
        ({"SLURM_NODEID": "3"}, "--distribution=block"),
        ({"SLURM_DISTRIBUTION": "cyclic:block"}, "--distribution=block"),
    ],
)
def test_invalid_variables_are_refused_in_one_line(changes: dict[str, str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        place_by_slurm(STEP | changes, TRUSTED)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_hosts_are_refused_without_trust() -> None:
    with pytest.raises(UserError, match="--trusted-network"):
        place_by_slurm(STEP, ClusterConfig())
