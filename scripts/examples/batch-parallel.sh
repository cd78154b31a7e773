#!/bin/bash
# A batch in N shards with GNU parallel, on this machine or on those of its --sshloginfile.
#   batch-parallel.sh MODEL INPUT OUTPUT [SHARDS]
# Start it again to continue after an interruption.
set -eu
model=$1 input=$2 output=$3 shards=${4:-8}

# Two jobs at a time: take as many as fit into the memory of the machine. A shard also fails for a row with an error;
# --join tells whether rows are missing.
parallel --will-cite -j2 \
    runnel batch '{1}' -i '{2}' -o '{3}.{shard}' --shard "auto/$shards" --resume \
    ::: "$model" ::: "$input" ::: "$output" :::: <(seq "$shards") ||
    echo "some shards failed, or have rows with errors" >&2
runnel batch --join "$output".*-of-"$shards" -o "$output" --overwrite
