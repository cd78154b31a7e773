#!/bin/bash
#SBATCH --job-name=runnel-batch
#SBATCH --array=0-31%8
#SBATCH --ntasks=1
#SBATCH --requeue
# A batch as a Slurm array: a shard for each task of the array, eight at a time.
#   sbatch batch-array.sh MODEL INPUT OUTPUT
# When all are done, on any machine:
#   runnel batch --join OUTPUT.*-of-32 -o OUTPUT
# It lists the shards that are missing. To run them again, submit the whole array again: --resume ends at once where
# nothing is left to do.
set -eu
model=$1 input=$2 output=$3

runnel batch "$model" -i "$input" -o "$output.{shard}" --shard auto --resume
