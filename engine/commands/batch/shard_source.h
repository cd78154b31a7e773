// `batch --shard auto`: which shard this process answers, as the program that started it says in environment
// variables.
//
//   source              index                                       number of shards
//   Slurm step (srun)   SLURM_PROCID                                SLURM_STEP_NUM_TASKS
//   Slurm array         (SLURM_ARRAY_TASK_ID - _MIN) / _STEP        SLURM_ARRAY_TASK_COUNT
//   Open MPI (mpirun)   OMPI_COMM_WORLD_RANK                        OMPI_COMM_WORLD_SIZE
//   PMI (MPICH, Intel)  PMI_RANK                                    PMI_SIZE
//   GNU parallel        PARALLEL_SEQ (from 1 on)                    none
//   Kubernetes          JOB_COMPLETION_INDEX                        none
//
// A source of one task (srun -n 1 in an array) divides nothing and does not count beside another source.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/commands/arguments.h"

namespace runnel::commands {

// "auto" or "auto/N".
struct AutoShard {
    std::optional<int64_t> parts;
};
// nullopt if the text does not begin with "auto". Throws UsageError for a bad number.
std::optional<AutoShard> parse_auto_shard(const std::string &text);

struct ShardChoice {
    Shard shard;
    std::string source;  // "Slurm array (SLURM_ARRAY_TASK_ID=3, ...)"
};
// The value of an environment variable.
using Variables = std::function<std::optional<std::string>(const char *name)>;

// Throws UsageError, which names the variables, if there is no source, the number of shards is unknown, values are
// no numbers or out of range, an array has gaps, a Slurm script runs without srun, or sources disagree.
ShardChoice choose_shard(const AutoShard &automatic, const Variables &variable);

// True if Slurm has started the job again (SLURM_RESTART_COUNT): the output of the first start is to be resumed.
bool is_restarted(const Variables &variable);

// "2-of-8".
std::string shard_name(const Shard &shard);
// The output of a shard: "{shard}" in the name becomes "2-of-8". With `own_file`, a name without it gets the shard
// before its extension: out.jsonl becomes out.2-of-8.jsonl.
std::string shard_path(const std::string &path, const Shard &shard, bool own_file);

}  // namespace runnel::commands
