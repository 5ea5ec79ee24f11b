# shellcheck shell=bash
# What the batch scripts share: where the job runs, by SLURM's variables, and how a command is run on one of its nodes. Sourced.
[[ -n ${SLURM_JOB_ID:-} ]] || {
  echo "error: SLURM_JOB_ID is not set: submit this script with sbatch, from the repository" >&2
  exit 2
}
# sbatch runs a copy of the script from a folder of its own.
cd "${SLURM_SUBMIT_DIR:?is not set; sbatch sets it to the folder that the job was submitted from}" || exit 2
[[ -f launch/common.sh ]] || {
  echo "error: $PWD has no launch/common.sh: submit the job from the repository" >&2
  exit 2
}
# shellcheck source=launch/common.sh
source launch/common.sh

# Below the ports that Linux hands out by itself (32768 and above); jobs on one node seldom get the same three.
PORT=${PORT:-$((10000 + SLURM_JOB_ID % 7000 * 3))}
GPUS_PER_NODE=${GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-}}
[[ -n $GPUS_PER_NODE ]] || fail "SLURM_GPUS_ON_NODE is not set: ask for GPUs (sbatch --gpus-per-node=8 …), or set GPUS_PER_NODE"

# Sets NODES, the names of the job's nodes, of which there must be at least COUNT: find_nodes COUNT WHAT_FOR
find_nodes() {
  local names
  names=$(scontrol show hostnames "${SLURM_JOB_NODELIST:?is not set; sbatch sets it}") || fail "scontrol show hostnames $SLURM_JOB_NODELIST failed"
  read -r -d '' -a NODES <<<"$names" || true
  ((${#NODES[@]} >= $1)) || fail "the job has ${#NODES[@]} node(s), $2: sbatch --nodes=$1 …"
}

set_connection() {
  local host=$1
  shift
  # One task a node, with all its GPUs, and free to use all its cores.
  CONNECTION=(srun --nodes=1 --ntasks=1 --nodelist="$host" --cpu-bind=none --input=all "$@")
}
