#!/bin/bash
# A batch in N shards, one for each process of Open MPI. Model, input and output lie on a file system that all
# machines share.
#   batch-mpirun.sh MODEL INPUT OUTPUT [PROCESSES]
# Start it again, with as many processes, to continue after an interruption.
set -eu
model=$1 input=$2 output=$3 processes=${4:-2}

# --bind-to none: otherwise all threads of a process may share one core. A process also fails for a row with an error:
# the others must go on (orte_abort_on_non_zero_status, Open MPI 4), and --join tells whether rows are missing.
mpirun -n "$processes" --bind-to none --mca orte_abort_on_non_zero_status 0 \
    runnel batch "$model" -i "$input" -o "$output.{shard}" --shard auto --resume ||
    echo "some shards failed, or have rows with errors" >&2
runnel batch --join "$output".*-of-"$processes" -o "$output" --overwrite
