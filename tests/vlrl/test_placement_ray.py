"""Workers on two Ray nodes, of which one is killed, and the files for clusters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def run(*command, **options):
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bench" / "scale")])}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=os.environ | path, capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


LOST_NODE = """
import time
import numpy as np
from placement import cluster
with cluster(2) as nodes:
    from robot.workers import RobotPool
    from vlrl.engines.protocols import SERVE, PlacedEngines
    from vlrl.placement.ray_actors import RayPlacement
    from vlrl.placement.workers import use_placement
    from vlrl.policies.loading import EMBEDDED
    use_placement(RayPlacement(address=nodes.address))
    import ray
    engines = PlacedEngines(SERVE, {"model": str(EMBEDDED)}, 2, 300.0)
    servers = engines.start_all()
    pool = RobotPool("robot.sim.tabletop:Tabletop", {"job": "push"}, size=4)
    plays = [pool.environment(seed, ticks=100_000) for seed in range(4)]
    for play in plays:
        play.reset()
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    faults, end = [""] * 4, time.monotonic() + 120
    while not any(faults) and time.monotonic() < end:  # its processes take a moment to notice
        time.sleep(0.5)
        faults = [play.step(np.zeros(3, np.float32)).fault for play in plays]
    for play in plays:
        play.close()
    again = pool.environment(0, ticks=40)
    again.reset()
    fault = bool(again.step(np.zeros(3, np.float32)).fault)
    lost = [engines.end_lost(worker, anyway=False) for worker, _ in servers]
    version = engines.start()[1].get("/health", 60.0)["weights_version"] if any(lost) else "none is lost"
    print("result", sum(map(bool, faults)), len(faults), fault, pool.counts["errors"], sum(lost), version)
    engines.pool.close()
    again.close()
    pool.close()
    ray.shutdown()
"""


@pytest.mark.slow
def test_episodes_of_a_lost_node_are_void_and_others_go_on():
    """A node that fails says nothing of the policy, and must not end the run; nor may it take all that writes."""
    pytest.importorskip("ray", reason="needs pip install 'vlrl[ray]'")
    lines = run("-c", LOST_NODE).splitlines()  # Ray writes some of its own
    void, episodes, fault, errors, lost, version = next(
        line.split()[1:] for line in lines if line.startswith("result ")
    )
    assert 0 < int(void) < int(episodes) and fault == "False" and errors == void
    assert (lost, version) == ("1", "start")


CLUSTER = ROOT / "configs" / "cluster"


def test_the_cluster_files_are_well_formed():
    """A job that waited a night in a queue would end at its first line."""
    subprocess.run(["bash", "-n", CLUSTER / "slurm.sh"], check=True)
    job = yaml.safe_load((CLUSTER / "kuberay.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        mounts = {mount["name"] for each in pod["containers"] for mount in each["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]} and "rayStartParams" in group


def test_ray_takes_what_the_cluster_files_say():
    """Options change between releases."""
    pytest.importorskip("ray", reason="needs pip install 'vlrl[ray]'")
    from ray.runtime_env import RuntimeEnv

    assert RuntimeEnv(**yaml.safe_load((CLUSTER / "ray_job.yaml").read_text()))["env_vars"]
    text = run("-m", "ray.scripts.scripts", "symmetric-run", "--help")
    assert all(option in text for option in ("--address", "--min-nodes")) and "--num-cpus" in run(
        "-m", "ray.scripts.scripts", "start", "--help"
    )
