#include "engine/measure/speed.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "engine/completion/queue.h"
#include "engine/measure/median.h"
#include "engine/measure/pass_cost.h"
#include "gguf/base/bytes.h"
#include "gguf/base/interrupted.h"
#include "gguf/base/timer.h"

namespace runnel::measure {
namespace {

using decode::SamplingOptions;

using base::Clock, base::seconds_since;

std::string name(const char *kind, int32_t tokens, int32_t depth) {
    return kind + std::to_string(tokens) + (depth > 0 ? " @ d" + std::to_string(depth) : "");
}

// The GPUs that the engine will use if the model runs on them.
std::vector<kernels::DevicePtr> gpus_of(const DeviceRequest &request) {
    if (request.device == "cpu") return {};
    return decode::choose_device(request, kernels::devices()).gpus;
}

}  // namespace

double SpeedRow::mean() const {
    double sum = 0;
    for (const double r : rates) sum += r;
    return sum / static_cast<double>(rates.size());
}

double SpeedRow::deviation() const {
    if (rates.size() < 2) return 0;
    double sum = 0;
    for (const double r : rates) sum += (r - mean()) * (r - mean());
    return std::sqrt(sum / static_cast<double>(rates.size() - 1));
}

std::optional<double> SpeedRow::share() const {
    if (bandwidths.empty() || in_cache) return std::nullopt;
    std::vector<double> shares;
    for (size_t i = 0; i < rates.size(); ++i) shares.push_back(rates[i] * bytes_per_token / bandwidths[i]);
    return median(std::move(shares));
}

DeviceLimits::DeviceLimits(const DeviceRequest &request) {
    if (const auto gpus = gpus_of(request); !gpus.empty()) {
        try {
            copies_ = gpus.front()->copy_bandwidth();
            tensor_rate_ = gpus.front()->tensor_rate();
        } catch (const kernels::BackendError &) {
            copies_ = tensor_rate_ = 0;  // the engine reports the error when it loads
        }
    }
}

void DeviceLimits::use_cpu(int threads, size_t working_set) {
    copies_ = tensor_rate_ = 0;
    cache_ = last_level_cache();
    meter_.emplace(threads, probe_bytes(working_set, kernels::cpu_device(threads)->free_memory()));
}

std::string DeviceLimits::method() const {
    if (!meter_) return "copies";
    const bool cached = in_cache(static_cast<double>(meter_->bytes()));
    return "reads of " + base::mebibytes(meter_->bytes()) + (cached ? " in the CPU's cache" : "") +
           ", fastest: " + meter_->best().words();
}

// (Not a temporary: with the sanitizers, GCC 12 reports a temporary's members as uninitialized.)
static const text::ChatPromptOptions kDefaultFormat;

SpeedBench::SpeedBench(const Options &options, Engine &engine, DeviceLimits &limits, const StopRequest &stop)
    : options_(options),
      engine_(engine),
      limits_(limits),
      stop_(stop),
      format_(engine.file(), engine.tokenizer(), kDefaultFormat),
      split_(engine.executor().device().kind.find('+') != std::string::npos) {
    SingleSequence warm(engine.executor());
    if (!warm.feed(std::vector<TokenId>(1, 0), &stop_)) throw base::Interrupted{};
}

SpeedRow SpeedBench::prefill(int32_t tokens, int32_t depth) {
    SpeedRow row{name("pp", tokens, depth), SpeedRow::Kind::Prefill, tokens, 0, depth};
    SingleSequence sequence(engine_.executor());
    feed(sequence, depth);
    for (int32_t i = 0; i < options_.repetitions; ++i) {
        sequence.truncate(static_cast<size_t>(depth));
        const auto start = Clock::now();
        feed(sequence, tokens);
        const double seconds = seconds_since(start);
        row.rates.push_back(tokens / seconds);
        row.first_token += seconds / options_.repetitions;
    }
    row.operations = row.mean() * engine_.model().program.operations_per_token();
    return row;
}

SpeedRow SpeedBench::decode(int32_t tokens, int32_t depth) {
    SpeedRow row{name("tg", tokens, depth), SpeedRow::Kind::Decode, 0, tokens, depth};
    row.bytes_per_token = decode_cost(engine_.model().program, depth, tokens, options_.types).bytes();
    row.in_cache = limits_.in_cache(row.bytes_per_token);
    const bool meter_beside = !split_ && !row.in_cache;
    SingleSequence sequence(engine_.executor());
    feed(sequence, depth);
    for (int32_t i = 0; i < options_.repetitions; ++i) {
        sequence.truncate(static_cast<size_t>(depth));
        const double before = meter_beside ? limits_.bandwidth() : 0;
        const int64_t launched = engine_.executor().launches();
        const auto start = Clock::now();
        for (int32_t n = 0; n < tokens; ++n) feed(sequence, 1);
        row.rates.push_back(tokens / seconds_since(start));
        row.launches = static_cast<double>(engine_.executor().launches() - launched) / tokens;
        if (meter_beside) row.bandwidths.push_back(std::max(before, limits_.bandwidth()));
    }
    return row;
}

SpeedRow SpeedBench::both(int32_t prompt, int32_t generate, int32_t depth) {
    SpeedRow row{name("pp", prompt, 0) + "+" + name("tg", generate, depth), SpeedRow::Kind::Both, prompt,
                 generate, depth};
    SingleSequence sequence(engine_.executor());
    feed(sequence, depth);
    for (int32_t i = 0; i < options_.repetitions; ++i) {
        sequence.truncate(static_cast<size_t>(depth));
        const auto start = Clock::now();
        feed(sequence, prompt);
        for (int32_t n = 0; n < generate; ++n) feed(sequence, 1);
        row.rates.push_back((prompt + generate) / seconds_since(start));
    }
    return row;
}

std::vector<SpeedRow> SpeedBench::together(int32_t tokens, int32_t depth) {
    std::vector<SpeedRow> rows;
    for (const int32_t count : options_.sequences) {
        SpeedRow row{name("tg", tokens, 0) + " x" + std::to_string(count), SpeedRow::Kind::Sequences, 0,
                     tokens, depth};
        if (depth > 0) row.test += " @ d" + std::to_string(depth);
        row.sequences = count;
        rows.push_back(std::move(row));
    }
    for (int32_t i = 0; i < options_.repetitions && !rows.empty(); ++i) {
        const double one = rate_of(1, tokens, depth);
        for (SpeedRow &row : rows) {
            row.rates.push_back(row.sequences == 1 ? one : rate_of(row.sequences, tokens, depth));
            row.gains.push_back(row.rates.back() / one);
        }
    }
    return rows;
}

// Tokens per second of `count` answers generated as in `batch`: with sampling, without prefill.
double SpeedBench::rate_of(int32_t count, int32_t tokens, int32_t depth) {
    completion::CompletionQueue queue(engine_, format_, {.parallel = count});
    for (int32_t i = 0; i < count; ++i) {
        SamplingOptions how;
        how.seed = static_cast<uint64_t>(i);
        queue.submit({.input = completion::Tokens{random_tokens(std::max(depth, 1))},
                      .sampling = how,
                      .limits = {.ignore_end = true}});
    }
    const auto step = [&] {
        if (!queue.step(&stop_)) throw base::Interrupted{};
        for (const completion::Event &event : queue.events())
            if (const auto *done = std::get_if<completion::Done>(&event)) completion::expect_answer(*done);
    };
    while (queue.counts().started < count) step();
    const auto start = Clock::now();
    const int64_t before = queue.counts().sampled_tokens;
    for (int32_t n = 0; n < tokens; ++n) step();
    return static_cast<double>(queue.counts().sampled_tokens - before) / seconds_since(start);
}

std::vector<TokenId> SpeedBench::random_tokens(int32_t count) {
    std::vector<TokenId> tokens(static_cast<size_t>(count));
    const auto vocab = static_cast<uint32_t>(engine_.model().hyper.vocab);
    for (TokenId &id : tokens) id = static_cast<TokenId>(random_() % vocab);
    return tokens;
}

void SpeedBench::feed(SingleSequence &sequence, int32_t count) {
    if (!sequence.feed(random_tokens(count), &stop_)) throw base::Interrupted{};
}

}  // namespace runnel::measure
