#!/bin/bash
#SBATCH --job-name=runnel-batch
#SBATCH --ntasks=8
#SBATCH --requeue
# A batch in one Slurm job: srun starts a shard for each task. A job that Slurm starts again continues.
#   sbatch batch-srun.sh MODEL INPUT OUTPUT
# Submit it again with as many tasks to continue after an interruption.
set -eu
model=$1 input=$2 output=$3

# A task also fails for a row with an error: the others must go on (--kill-on-bad-exit=0), and --join tells whether
# rows are missing.
srun --kill-on-bad-exit=0 \
    runnel batch "$model" -i "$input" -o "$output.{shard}" --shard auto --resume ||
    echo "some shards failed, or have rows with errors" >&2
runnel batch --join "$output".*-of-"$SLURM_NTASKS" -o "$output" --overwrite
