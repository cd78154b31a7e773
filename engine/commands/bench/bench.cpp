// Prefill and decode speed against what the hardware allows.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>
#include <random>
#include <variant>

#include "engine/commands/bench/bench_speculation.h"
#include "engine/commands/bench/median.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/completion/queue.h"
#include "engine/decode/cache_plan.h"
#include "engine/decode/error.h"
#include "engine/decode/single_sequence.h"
#include "engine/measure/bandwidth.h"
#include "gguf/base/timer.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

namespace runnel::commands {
namespace {

using base::Clock, base::seconds_since;
using decode::Engine;
using decode::SingleSequence;

struct Row {
    std::string test;  // "pp512", "tg128 @ d4096", "tg128 x16"
    bool decode;
    int32_t depth;
    std::vector<double> rates;    // tokens per second, one per repetition
    int32_t sequences = 1;        // at a time
    std::vector<double> gains{};  // over one sequence, in the same repetition
    double bytes_per_token = 0;   // weights and cache that a token moves; of decoding
    double first_token = 0;       // seconds, mean; of a prefill
    double operations = 0;        // of the matrices, per second; of a prefill
    // Bytes per second that the machine read around each repetition; of decoding.
    std::vector<double> bandwidths{};
    double launches = 0;  // of kernels, per token; 0: the device has none. Of decoding.

    double mean() const {
        double sum = 0;
        for (const double r : rates) sum += r;
        return sum / static_cast<double>(rates.size());
    }
    // Of the bandwidth, the median over the repetitions: neighbors slow both down alike. None where two
    // memories share the work.
    std::optional<double> share() const {
        if (bandwidths.empty()) return std::nullopt;
        std::vector<double> shares;
        for (size_t i = 0; i < rates.size(); ++i)
            shares.push_back(rates[i] * bytes_per_token / bandwidths[i]);
        return median(std::move(shares));
    }
    double deviation() const {
        if (rates.size() < 2) return 0;
        double sum = 0;
        for (const double r : rates) sum += (r - mean()) * (r - mean());
        return std::sqrt(sum / static_cast<double>(rates.size() - 1));
    }
};

// What the device's memory and tensor cores give, measured on it. Of a GPU once, before the model takes its
// memory, when nothing else uses it; of the CPU around every test.
class Limits {
  public:
    Limits(const decode::DeviceChoice &choice, int threads) {
        if (!choice.gpus.empty()) {
            try {
                copies_ = choice.gpus.front()->copy_bandwidth();
                tensor_rate_ = choice.gpus.front()->tensor_rate();
                return;
            } catch (const kernels::BackendError &) {
                copies_ = tensor_rate_ = 0;  // then the engine says what is wrong with it, or uses the CPU
            }
        }
        meter_.emplace(threads);
    }
    // The engine uses the CPU after all.
    void use_cpu(int threads) {
        copies_ = tensor_rate_ = 0;
        if (!meter_) meter_.emplace(threads);
    }
    double bandwidth() { return meter_ ? meter_->read() : copies_; }  // bytes per second
    double tensor_rate() const { return tensor_rate_; }               // operations per second; 0: not known
    bool of_gpu() const { return !meter_; }

  private:
    std::optional<decode::BandwidthMeter> meter_;
    double copies_ = 0, tensor_rate_ = 0;
};

// Runs tests on one engine; throws Interrupted.
class Bench {
  public:
    Bench(const BenchOptions &options, Engine &engine, Limits &limits, const decode::StopRequest &stop)
        : options_(options),
          engine_(engine),
          limits_(limits),
          stop_(stop),
          divided_(engine.executor().device().kind.find('+') != std::string::npos) {}

    Row prefill(int32_t depth) {
        Row row{name("pp", options_.prompt, depth), false, depth, {}};
        SingleSequence session(engine_.executor());
        feed(session, depth);
        for (int32_t i = 0; i < options_.repetitions; ++i) {
            session.truncate(static_cast<size_t>(depth));
            const auto start = Clock::now();
            feed(session, options_.prompt);
            const double seconds = seconds_since(start);
            row.rates.push_back(options_.prompt / seconds);
            row.first_token += seconds / options_.repetitions;
        }
        row.operations = row.mean() * engine_.model().program.operations_per_token();
        return row;
    }

    Row decode(int32_t depth) {
        Row row{name("tg", options_.generate, depth), true, depth, {}};
        SingleSequence session(engine_.executor());
        feed(session, depth);
        for (int32_t i = 0; i < options_.repetitions; ++i) {
            session.truncate(static_cast<size_t>(depth));
            const double before = divided_ ? 0 : limits_.bandwidth();
            const int64_t launched = engine_.executor().launches();
            const auto start = Clock::now();
            for (int32_t n = 0; n < options_.generate; ++n) feed(session, 1);
            row.rates.push_back(options_.generate / seconds_since(start));
            row.launches = static_cast<double>(engine_.executor().launches() - launched) / options_.generate;
            if (!divided_) row.bandwidths.push_back((before + limits_.bandwidth()) / 2);
        }
        // The cells that the middle token of the test reads.
        const kernels::Program &program = engine_.model().program;
        const double cell = static_cast<double>(decode::cache_bytes(program, kernels::kBlockTokens,
                                                                    options_.model.cache.types)) /
                            kernels::kBlockTokens;
        row.bytes_per_token =
            static_cast<double>(program.weight_bytes_per_token()) + cell * (depth + options_.generate / 2.0);
        return row;
    }

    // So many sequences at a time, taking turns with one: neighbors that slow the machine down do so for
    // all.
    std::vector<Row> together(int32_t depth) {
        if (options_.sequences.empty()) return {};
        std::vector<Row> rows;
        for (const int32_t count : options_.sequences) {
            Row row{name("tg", options_.generate, 0) + " x" + std::to_string(count), false, depth, {}};
            if (depth > 0) row.test += " @ d" + std::to_string(depth);
            row.sequences = count;
            rows.push_back(std::move(row));
        }
        for (int32_t i = 0; i < options_.repetitions; ++i) {
            const double one = rate_of(1, depth);
            for (Row &row : rows) {
                row.rates.push_back(row.sequences == 1 ? one : rate_of(row.sequences, depth));
                row.gains.push_back(row.rates.back() / one);
            }
        }
        return rows;
    }

  private:
    // Tokens per second of `count` answers as `batch` makes them, sampling included, prompts not.
    double rate_of(int32_t count, int32_t depth) {
        completion::CompletionQueue queue(engine_, format_, {.parallel = count});
        for (int32_t i = 0; i < count; ++i) {
            decode::SamplingOptions how;
            how.seed = static_cast<uint64_t>(i);
            queue.submit({.input = completion::Tokens{random_tokens(std::max(depth, 1))},
                          .sampling = how,
                          .limits = {.ignore_end = true}});
        }
        const auto step = [&] {
            if (!queue.step(&stop_)) throw Interrupted{};
            for (const completion::Event &event : queue.events())
                if (const auto *done = std::get_if<completion::Done>(&event)) expect_answer(*done);
        };
        while (queue.counts().started < count) step();
        const auto start = Clock::now();
        const int64_t before = queue.counts().sampled_tokens;
        for (int32_t n = 0; n < options_.generate; ++n) step();
        return static_cast<double>(queue.counts().sampled_tokens - before) / seconds_since(start);
    }
    static std::string name(const char *kind, int32_t tokens, int32_t depth) {
        return kind + std::to_string(tokens) + (depth > 0 ? " @ d" + std::to_string(depth) : "");
    }
    std::vector<text::TokenId> random_tokens(int32_t count) {
        std::vector<text::TokenId> tokens(static_cast<size_t>(count));
        const auto vocab = static_cast<uint32_t>(engine_.model().hyper.vocab);
        for (text::TokenId &id : tokens) id = static_cast<text::TokenId>(random_() % vocab);
        return tokens;
    }
    void feed(SingleSequence &session, int32_t count) {
        if (!session.feed(random_tokens(count), &stop_)) throw Interrupted{};
    }

    const BenchOptions &options_;
    Engine &engine_;
    Limits &limits_;
    const decode::StopRequest &stop_;
    const completion::PromptFormat format_{engine_.file(), engine_.tokenizer()};
    const bool divided_;      // between a GPU and the CPU
    std::mt19937 random_{1};  // which tokens does not matter to the speed
};

std::string table(const std::vector<Row> &rows, double bandwidth, const Limits &limits,
                  const std::string &device) {
    char line[256];
    std::snprintf(line, sizeof line, "%s, %s %.1f GB/s", device.c_str(), limits.of_gpu() ? "copies" : "reads",
                  bandwidth / 1e9);
    std::string text = line;
    if (limits.tensor_rate() > 0) {
        std::snprintf(line, sizeof line, ", multiplies %.0f TFLOP/s (16 bits)", limits.tensor_rate() / 1e12);
        text += line;
    }
    text += "\n\n";
    text += "test              tokens/s      +/-   first token   MB/token   of bandwidth\n";
    for (const Row &row : rows) {
        if (row.decode && !row.share())
            std::snprintf(line, sizeof line, "%-15s %10.2f %8.2f %13s %10.1f %14s\n", row.test.c_str(),
                          row.mean(), row.deviation(), "", row.bytes_per_token / 1e6, "-");
        else if (row.decode)
            std::snprintf(line, sizeof line, "%-15s %10.2f %8.2f %13s %10.1f %13.1f%%\n", row.test.c_str(),
                          row.mean(), row.deviation(), "", row.bytes_per_token / 1e6, 100 * *row.share());
        else if (!row.gains.empty())
            std::snprintf(line, sizeof line, "%-15s %10.2f %8.2f %30.2f times one at a time\n",
                          row.test.c_str(), row.mean(), row.deviation(), median(row.gains));
        else
            std::snprintf(line, sizeof line, "%-15s %10.2f %8.2f %10.1f ms\n", row.test.c_str(), row.mean(),
                          row.deviation(), row.first_token * 1e3);
        text += line;
        if (row.operations > 0 && limits.tensor_rate() > 0) {
            text.pop_back();
            std::snprintf(line, sizeof line, " %28.1f%% of multiplying\n",
                          100 * row.operations / limits.tensor_rate());
            text += line;
        }
    }
    return text;
}

// Of all that was measured beside the rows; of one reading, when nothing was.
double median_bandwidth(const std::vector<Row> &rows, Limits &limits) {
    std::vector<double> all;
    for (const Row &row : rows) all.insert(all.end(), row.bandwidths.begin(), row.bandwidths.end());
    return all.empty() ? limits.bandwidth() : median(std::move(all));
}

// The GPU that the engine will be on, unless the model does not run there.
decode::DeviceChoice gpu_of(const decode::DeviceRequest &request) {
    if (request.device == "cpu") return {};
    return decode::choose_device(request, kernels::devices());
}

std::string kind_of(const Row &row) {
    return row.decode ? "decode" : row.gains.empty() ? "prefill" : "sequences";
}

Json json_of(const std::vector<Row> &rows, double bandwidth, const Limits &limits, const Engine &engine,
             const std::string &device, const BenchOptions &options) {
    Json list = Json::array();
    for (const Row &row : rows)
        list.push_back({{"test", row.test},
                        {"kind", kind_of(row)},
                        {"tokens", kind_of(row) == "prefill" ? options.prompt : options.generate},
                        {"depth", row.depth},
                        {"sequences", row.sequences},
                        {"gain", row.gains.empty() ? Json() : Json(median(row.gains))},
                        {"tps_mean", row.mean()},
                        {"tps_sd", row.deviation()},
                        {"tps", row.rates},
                        {"ttft_ms", kind_of(row) == "prefill" ? Json(row.first_token * 1e3) : Json()},
                        {"bytes_per_token", row.decode ? Json(row.bytes_per_token) : Json()},
                        {"bandwidth_share", row.share() ? Json(*row.share()) : Json()},
                        {"launches_per_token", row.launches > 0 ? Json(row.launches) : Json()},
                        {"operations_per_second", row.operations > 0 ? Json(row.operations) : Json()},
                        {"tensor_share", row.operations > 0 && limits.tensor_rate() > 0
                                             ? Json(row.operations / limits.tensor_rate())
                                             : Json()}});
    return {{"model", options.model.path},
            {"device", device},
            {"placement", engine.placement()},
            {"bandwidth_bytes_per_second", bandwidth},
            {"bandwidth_of", limits.of_gpu() ? "copies" : "reads"},
            {"tensor_operations_per_second", limits.tensor_rate() > 0 ? Json(limits.tensor_rate()) : Json()},
            {"load_ms", engine.load_seconds() * 1e3},
            {"repetitions", options.repetitions},
            {"tests", std::move(list)}};
}

}  // namespace

int bench(const BenchOptions &options, Io &io) {
    if (drafting_options(options.draft, options.model)) return bench_speculation(options, io);
    if (options.prompt <= 0 && options.generate <= 0)
        throw UsageError("nothing to measure: -p and -n are both 0");
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    const int32_t deepest = *std::max_element(options.depths.begin(), options.depths.end());
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    const int32_t most =
        options.sequences.empty() ? 1 : *std::max_element(options.sequences.begin(), options.sequences.end());
    int64_t needed = int64_t{deepest} + std::max(options.prompt, options.generate);
    // The first answers go on while the last prompts are computed.
    if (most > 1) needed += 2 + int64_t{most} * (deepest + 1) / std::max(1, options.model.batch - most);
    engine_flags.sequences = most;
    if (engine_flags.context == 0) engine_flags.context = needed;
    if (engine_flags.context < needed)
        throw UsageError("the tests need a context of " + std::to_string(needed) + " tokens: leave -c away");
    const int threads = options.model.threads > 0 ? options.model.threads : kernels::cpu::physical_cores();
    Limits limits(gpu_of(engine_flags.device), threads);
    Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    if (engine.executor().device().kind.find("cpu") != std::string::npos) limits.use_cpu(threads);
    const std::string device = engine.executor().device().name;
    Bench bench(options, engine, limits, stop);
    std::vector<Row> rows;
    {
        SingleSequence warm(engine.executor());  // brings the weights into memory
        if (!warm.feed(std::vector<text::TokenId>(1, 0), &stop)) throw Interrupted{};
    }
    for (const int32_t depth : options.depths) {
        if (options.prompt > 0) rows.push_back(bench.prefill(depth));
        if (options.generate > 0) rows.push_back(bench.decode(depth));
        if (options.generate > 0) std::ranges::move(bench.together(depth), std::back_inserter(rows));
    }
    const double bandwidth = median_bandwidth(rows, limits);
    io.out.write(options.json ? dump(json_of(rows, bandwidth, limits, engine, device, options), 2)
                              : table(rows, bandwidth, limits, device));
    return exit_code::kDone;
}

}  // namespace runnel::commands
