#include "engine/commands/batch/shard_source.h"

#include <charconv>
#include <utility>
#include <vector>

#include "engine/commands/io.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

constexpr int64_t kMost = 1'000'000'000;  // of an index or a number of shards
constexpr std::string_view kPlaceholder = "{shard}";

[[noreturn]] void refuse(const std::string &why) {
    throw UsageError("--shard auto: " + why);
}

std::optional<int64_t> number_of(const std::string &text) {
    int64_t number = 0;
    const char *const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || rest != end || number < 0 || number > kMost) return std::nullopt;
    return number;
}

struct Source {
    std::string name;
    int64_t index = 0;             // from 0 on
    std::optional<int64_t> parts;  // nullopt: the source has no total
};

// Reads the variables of one source and lists them for messages.
class Reader {
  public:
    Reader(const Variables &variable, std::string name) : variable_(variable), name_(std::move(name)) {}

    int64_t get(const char *name) {
        const std::optional<std::string> text = variable_(name);
        if (!text) refuse(name_ + ": " + std::string(name) + " is not set");
        const std::optional<int64_t> value = number_of(*text);
        if (!value)
            refuse(std::string(name) + " is " + gguf::quoted(*text) + ", expected a number from 0 to " +
                   std::to_string(kMost));
        list_ += (list_.empty() ? "" : ", ") + std::string(name) + "=" + std::to_string(*value);
        return *value;
    }
    std::string shown() const { return name_ + " (" + list_ + ")"; }
    Source source(int64_t index, std::optional<int64_t> parts) const {
        if (index < 0 || (parts && index >= *parts))
            refuse(shown() + ": the index is out of range; write --shard I/N");
        return {shown(), index, parts};
    }

  private:
    const Variables &variable_;
    std::string name_, list_;
};

Source slurm_step(const Variables &variable) {
    Reader read(variable, "Slurm step");
    const int64_t index = read.get("SLURM_PROCID");
    return read.source(index, read.get("SLURM_STEP_NUM_TASKS"));
}

Source slurm_array(const Variables &variable) {
    Reader read(variable, "Slurm array");
    const int64_t id = read.get("SLURM_ARRAY_TASK_ID"), least = read.get("SLURM_ARRAY_TASK_MIN"),
                  most = read.get("SLURM_ARRAY_TASK_MAX"), step = read.get("SLURM_ARRAY_TASK_STEP"),
                  count = read.get("SLURM_ARRAY_TASK_COUNT");
    if (step < 1 || most < least || count != (most - least) / step + 1 || (id - least) % step != 0)
        refuse(read.shown() + ": the array has gaps; write --shard I/N, or submit an array without gaps");
    return read.source((id - least) / step, count);
}

Source rank(const Variables &variable, const char *name, const char *index, const char *parts) {
    Reader read(variable, name);
    const int64_t value = read.get(index);
    return read.source(value, read.get(parts));
}

Source without_total(const Variables &variable, const char *name, const char *index, int64_t first) {
    Reader read(variable, name);
    const int64_t value = read.get(index);
    return read.source(value - first, std::nullopt);
}

std::vector<Source> sources_of(const Variables &variable) {
    const auto has = [&](const char *name) { return variable(name).has_value(); };
    std::vector<Source> sources;
    // A step has both; a script of sbatch has SLURM_PROCID=0 alone, however many tasks the job has.
    if (has("SLURM_STEP_NUM_TASKS")) sources.push_back(slurm_step(variable));
    if (has("SLURM_ARRAY_TASK_ID")) sources.push_back(slurm_array(variable));
    if (has("OMPI_COMM_WORLD_RANK"))
        sources.push_back(rank(variable, "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"));
    if (has("PMI_RANK")) sources.push_back(rank(variable, "PMI", "PMI_RANK", "PMI_SIZE"));
    if (has("PARALLEL_SEQ")) sources.push_back(without_total(variable, "GNU parallel", "PARALLEL_SEQ", 1));
    if (has("JOB_COMPLETION_INDEX"))
        sources.push_back(without_total(variable, "Kubernetes", "JOB_COMPLETION_INDEX", 0));
    if (sources.size() > 1) {
        const std::vector<Source> all = sources;
        std::erase_if(sources, [](const Source &source) { return source.parts == 1; });
        if (sources.empty()) sources = all;
    }
    if (!sources.empty()) return sources;
    if (has("SLURM_PROCID"))
        refuse(
            "SLURM_PROCID is set but SLURM_STEP_NUM_TASKS is not: sbatch runs its script only once; start "
            "runnel with srun, or submit an array");
    refuse(
        "none of SLURM_STEP_NUM_TASKS, SLURM_ARRAY_TASK_ID, OMPI_COMM_WORLD_RANK, PMI_RANK, PARALLEL_SEQ and "
        "JOB_COMPLETION_INDEX is set; write --shard I/N");
}

}  // namespace

std::optional<AutoShard> parse_auto_shard(const std::string &text) {
    constexpr std::string_view kAuto = "auto";
    if (!text.starts_with(kAuto)) return std::nullopt;
    if (text == kAuto) return AutoShard{};
    const std::optional<int64_t> parts =
        text[kAuto.size()] == '/' ? number_of(text.substr(kAuto.size() + 1)) : std::nullopt;
    if (!parts || *parts < 1)
        throw UsageError("--shard " + gguf::quoted(text) +
                         ": write auto, or auto/N with N from 1 on: auto/8");
    return AutoShard{parts};
}

ShardChoice choose_shard(const AutoShard &automatic, const Variables &variable) {
    std::vector<Source> sources = sources_of(variable);
    for (Source &source : sources) {
        if (!source.parts && !automatic.parts)
            refuse(source.name + " does not say how many shards there are: write --shard auto/N");
        if (!source.parts) source.parts = automatic.parts;
        if (automatic.parts && source.parts != automatic.parts)
            refuse(source.name + " does not have the " + std::to_string(*automatic.parts) +
                   " shards of auto/" + std::to_string(*automatic.parts));
        if (source.index >= *source.parts)
            refuse(source.name + ": the index is not among the " + std::to_string(*source.parts) + " shards");
    }
    ShardChoice choice{{sources[0].index + 1, *sources[0].parts}, sources[0].name};
    for (size_t i = 1; i < sources.size(); ++i) {
        if (sources[i].index != sources[0].index || sources[i].parts != sources[0].parts)
            refuse(sources[0].name + " and " + sources[i].name + " disagree; write --shard I/N");
        choice.source += " and " + sources[i].name;
    }
    return choice;
}

bool is_restarted(const Variables &variable) {
    const std::optional<std::string> count = variable("SLURM_RESTART_COUNT");
    return count && number_of(*count).value_or(0) > 0;
}

std::string shard_name(const Shard &shard) {
    return std::to_string(shard.part) + "-of-" + std::to_string(shard.parts);
}

std::string shard_path(const std::string &path, const Shard &shard, bool own_file) {
    const std::string name = shard_name(shard);
    std::string result = path;
    bool found = false;
    for (size_t at = 0; (at = result.find(kPlaceholder, at)) != result.npos; at += name.size()) {
        result.replace(at, kPlaceholder.size(), name);
        found = true;
    }
    if (found || !own_file) return result;
    const size_t file = path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1;
    const size_t dot = path.rfind('.');
    const bool has_extension = dot != path.npos && dot > file;
    return has_extension ? path.substr(0, dot) + "." + name + path.substr(dot) : path + "." + name;
}

}  // namespace runnel::commands
