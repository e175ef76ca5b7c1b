#!/bin/bash
# One run on several machines under Slurm: sbatch configs/cluster/slurm.sh CONFIG CHANGE ...
# The first machine trains, simulators, browsers and judges run on all. The folder is on a file system that all see.
# Goes on after its time is up: the same with --resume RUN in place of CONFIG; set log.checkpoint_every.
#SBATCH --job-name=vlrl
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
set -euo pipefail

: "${1:?usage: sbatch slurm.sh CONFIG CHANGE ...}"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export RAY_ADDRESS="$head:6379" RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600

# starts Ray on every machine, the command on the first, and ends Ray with it
exec srun --kill-on-bad-exit=1 ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus "$SLURM_CPUS_PER_TASK" -- vlrl train "$@" placement=ray
