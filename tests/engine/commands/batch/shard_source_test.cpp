// `batch --shard auto`: the shard that the environment of each launcher means, and what is refused.
#include "engine/commands/batch/shard_source.h"

#include <doctest/doctest.h>

#include <map>

#include "engine/commands/io.h"
#include "tests/support/random.h"

using namespace runnel::commands;
using runnel::testing::Random;

namespace {

using Environment = std::map<std::string, std::string>;

Variables in(const Environment &environment) {
    return [&environment](const char *name) {
        const auto found = environment.find(name);
        return found == environment.end() ? std::nullopt : std::optional(found->second);
    };
}

// "2/8", or the message of the error.
std::string chosen(const Environment &environment, const std::string &shard = "auto") {
    try {
        const ShardChoice choice = choose_shard(parse_auto_shard(shard).value(), in(environment));
        return std::to_string(choice.shard.part) + "/" + std::to_string(choice.shard.parts);
    } catch (const UsageError &error) {
        return error.what();
    }
}

void names(const std::string &message, std::initializer_list<const char *> parts) {
    CAPTURE(message);
    for (const char *part : parts) CHECK(message.find(part) != std::string::npos);
}

Environment array(const char *id, const char *least, const char *most, const char *step, const char *count) {
    return {{"SLURM_ARRAY_TASK_ID", id},
            {"SLURM_ARRAY_TASK_MIN", least},
            {"SLURM_ARRAY_TASK_MAX", most},
            {"SLURM_ARRAY_TASK_STEP", step},
            {"SLURM_ARRAY_TASK_COUNT", count},
            {"SLURM_PROCID", "0"},
            {"SLURM_NTASKS", "1"}};
}

Environment operator+(Environment a, const Environment &b) {
    a.insert(b.begin(), b.end());
    return a;
}

const Environment kStep = {{"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "4"}};

}  // namespace

TEST_CASE("shard auto: each launcher's variables give its shard") {
    CHECK(chosen(kStep) == "3/4");
    CHECK(chosen(array("0", "0", "31", "1", "32")) == "1/32");
    CHECK(chosen(array("31", "0", "31", "1", "32")) == "32/32");
    CHECK(chosen(array("5", "3", "7", "2", "3")) == "2/3");
    CHECK(chosen(array("3", "1", "4", "2", "2")) == "2/2");  // 1-4:2 has the tasks 1 and 3
    CHECK(chosen({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}) == "1/2");
    CHECK(chosen({{"PMI_RANK", "6"}, {"PMI_SIZE", "7"}}) == "7/7");
    CHECK(chosen({{"PARALLEL_SEQ", "1"}}, "auto/8") == "1/8");
    CHECK(chosen({{"PARALLEL_SEQ", "8"}}, "auto/8") == "8/8");
    CHECK(chosen({{"JOB_COMPLETION_INDEX", "7"}}, "auto/8") == "8/8");
    CHECK(chosen(kStep, "auto/4") == "3/4");
    const Environment environment = array("5", "3", "7", "2", "3");
    const std::string source = choose_shard({}, in(environment)).source;
    names(source, {"Slurm array", "SLURM_ARRAY_TASK_ID=5", "SLURM_ARRAY_TASK_COUNT=3"});
}

TEST_CASE("shard auto: arrays of every start, step and size deal the shards in order") {
    for (uint64_t seed = 0; seed < 200; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        const uint64_t least = random.below(50), step = 1 + random.below(6), count = 1 + random.below(9);
        const uint64_t most = least + (count - 1) * step + random.below(step);
        for (uint64_t i = 0; i < count; ++i)
            CHECK(chosen(array(std::to_string(least + i * step).c_str(), std::to_string(least).c_str(),
                               std::to_string(most).c_str(), std::to_string(step).c_str(),
                               std::to_string(count).c_str())) ==
                  std::to_string(i + 1) + "/" + std::to_string(count));
    }
}

TEST_CASE("shard auto: a source of one task does not count beside another source") {
    const Environment one = {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}};
    CHECK(chosen(one) == "1/1");
    CHECK(chosen(one + array("5", "3", "7", "2", "3")) == "2/3");
    CHECK(chosen(one + Environment{{"PARALLEL_SEQ", "3"}}, "auto/80") == "3/80");
    CHECK(chosen(
              {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}) ==
          "1/1");
    // mpirun in a script of sbatch.
    CHECK(chosen({{"SLURM_PROCID", "0"},
                  {"SLURM_NTASKS", "4"},
                  {"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "4"}}) == "2/4");
    CHECK(chosen(kStep + Environment{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}) == "3/4");
}

TEST_CASE("shard auto: what would lose or repeat rows is refused, and the variables are named") {
    names(chosen({}), {"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PARALLEL_SEQ",
                       "JOB_COMPLETION_INDEX", "--shard I/N"});
    names(chosen({{"PARALLEL_SEQ", "3"}}), {"PARALLEL_SEQ=3", "auto/N"});
    names(chosen({{"JOB_COMPLETION_INDEX", "3"}}), {"JOB_COMPLETION_INDEX=3", "auto/N"});
    names(chosen({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}), {"SLURM_PROCID", "srun"});
    names(chosen(array("2", "1", "7", "1", "3")), {"SLURM_ARRAY_TASK_COUNT=3", "gaps"});
    names(chosen(array("4", "3", "7", "2", "3")), {"SLURM_ARRAY_TASK_ID=4", "gaps"});
    names(chosen(array("4", "3", "7", "0", "3")), {"SLURM_ARRAY_TASK_STEP=0", "gaps"});
    names(chosen(array("9", "3", "7", "2", "3")), {"SLURM_ARRAY_TASK_ID=9", "out of range"});
    names(chosen(array("1", "3", "7", "2", "3")), {"SLURM_ARRAY_TASK_ID=1", "out of range"});
    names(chosen({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
          {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=2", "out of range"});
    names(chosen({{"PARALLEL_SEQ", "9"}}, "auto/8"), {"PARALLEL_SEQ=9", "8"});
    names(chosen({{"PARALLEL_SEQ", "0"}}, "auto/8"), {"PARALLEL_SEQ=0", "out of range"});
    names(chosen({{"JOB_COMPLETION_INDEX", "8"}}, "auto/8"), {"JOB_COMPLETION_INDEX=8", "8"});
    names(chosen(kStep, "auto/8"), {"SLURM_STEP_NUM_TASKS=4", "auto/8"});
    names(chosen(kStep + Environment{{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}}),
          {"SLURM_PROCID=2", "PMI_RANK=1", "disagree"});
    names(chosen(kStep + array("2", "0", "4", "1", "5")),
          {"SLURM_PROCID=2", "SLURM_ARRAY_TASK_ID=2", "disagree"});
    names(chosen({{"OMPI_COMM_WORLD_RANK", "2"}}), {"OMPI_COMM_WORLD_SIZE is not set"});
    names(chosen({{"PMI_SIZE", "4"}, {"PMI_RANK", "-1"}}), {"PMI_RANK", "-1"});
    names(chosen({{"PMI_SIZE", "99999999999999999999"}, {"PMI_RANK", "1"}}), {"PMI_SIZE"});
    names(chosen({{"PMI_SIZE", "4x"}, {"PMI_RANK", ""}}), {"PMI_RANK"});
}

TEST_CASE("shard auto: the word, the restart count and the names of outputs") {
    CHECK_FALSE(parse_auto_shard("1/4"));
    CHECK_FALSE(parse_auto_shard("auto").value().parts);
    CHECK(parse_auto_shard("auto/12").value().parts == 12);
    for (const char *bad : {"auto/", "auto/0", "auto/x", "auto/4/", "auto 4", "automatic", "auto/-1"})
        CHECK_THROWS_AS(parse_auto_shard(bad), UsageError);
    CHECK_FALSE(is_restarted(in({})));
    const Environment first = {{"SLURM_RESTART_COUNT", "0"}}, second = {{"SLURM_RESTART_COUNT", "1"}};
    CHECK_FALSE(is_restarted(in(first)));
    CHECK(is_restarted(in(second)));
    const Shard shard{2, 8};
    CHECK(shard_path("out.jsonl", shard, true) == "out.2-of-8.jsonl");
    CHECK(shard_path("out", shard, true) == "out.2-of-8");
    CHECK(shard_path("a.b/out", shard, true) == "a.b/out.2-of-8");
    CHECK(shard_path("a/.out", shard, true) == "a/.out.2-of-8");
    CHECK(shard_path("a.b/c.d.jsonl", shard, true) == "a.b/c.d.2-of-8.jsonl");
    CHECK(shard_path("{shard}/x-{shard}.jsonl", shard, true) == "2-of-8/x-2-of-8.jsonl");
    CHECK(shard_path("x-{shard}.jsonl", shard, false) == "x-2-of-8.jsonl");
    CHECK(shard_path("out.jsonl", shard, false) == "out.jsonl");
}
