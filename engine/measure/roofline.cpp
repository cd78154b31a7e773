#include "engine/measure/roofline.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "engine/measure/median.h"
#include "gguf/base/interrupted.h"
#include "gguf/base/timer.h"
#include "kernels/steps.h"

namespace runnel::measure {
namespace {

using base::Clock, base::seconds_since;
using kernels::Program, kernels::Weight;

constexpr double kLongest = 3;  // after this many seconds, no further repetition of a test begins

// The largest matrix of the format that most weights have; null if there is none.
const Weight *common_matrix(const Program &program) {
    std::map<gguf::Type, double> bytes;
    std::map<gguf::Type, const Weight *> largest;
    for (const kernels::Step &step : program.steps)
        kernels::visit_matrices(step, [&](kernels::WeightId id, kernels::Use) {
            const Weight &weight = program.weights[static_cast<size_t>(id)];
            bytes[weight.type] += static_cast<double>(weight.bytes());
            const Weight *&known = largest[weight.type];
            if (!known || weight.matrix_bytes() > known->matrix_bytes()) known = &weight;
        });
    if (bytes.empty()) return nullptr;
    const auto most = std::ranges::max_element(bytes, {}, [](const auto &entry) { return entry.second; });
    return largest[most->first];
}

// An embedding and one matrix.
struct OneMatrix {
    Program program;
    int32_t tokens;

    OneMatrix(const Weight &matrix, int64_t rows, int32_t batch) : tokens(batch) {
        constexpr int64_t kIds = 16;
        auto table = std::make_shared<std::vector<float>>(static_cast<size_t>(kIds * matrix.cols));
        std::mt19937 random(1);
        for (float &x : *table) x = static_cast<float>(random() % 2001) / 1000 - 1;
        program.constants.push_back(table);
        program.weights = {
            {"table", gguf::Type::F32, kIds, matrix.cols, reinterpret_cast<const std::byte *>(table->data())},
            {matrix.name, matrix.type, rows, matrix.cols, matrix.data}};
        program.slots = {{"in", matrix.cols}, {"out", rows}};
        program.steps = {kernels::Embed{.table = 0, .out = 0},
                         kernels::Linear{0, {{1, kernels::kNoWeight, 1, kernels::kNoSlot}}}};
        program.vocab = kIds;
    }
    double operations() const {
        return 2.0 * tokens * static_cast<double>(program.weights[1].rows) *
               static_cast<double>(program.weights[1].cols);
    }
};

struct Passes {
    SingleSequence sequence;
    std::mt19937 random{1};
    uint32_t vocab;
    const StopRequest &stop;

    // Seconds of a pass of `count` tokens.
    double feed(int32_t count) {
        std::vector<TokenId> tokens(static_cast<size_t>(count));
        for (TokenId &id : tokens) id = static_cast<TokenId>(random() % vocab);
        const auto start = Clock::now();
        if (!sequence.feed(tokens, &stop)) throw base::Interrupted{};
        return seconds_since(start);
    }
};

}  // namespace

double Roofline::roof(double intensity) const {
    return std::min(bandwidth * intensity, multiply_rate);
}

double Roofline::decode_share() const {
    const double decode = std::accumulate(steps.begin(), steps.end(), 0.0);
    return decode / (first_token + decode);
}

double multiply_rate(const decode::Engine &engine, int threads, std::string &format) {
    const Weight *matrix = common_matrix(engine.model().program);
    if (!matrix) return 0;
    format = gguf::traits(matrix->type).name;
    constexpr int32_t kTokens = 512;
    constexpr size_t kBytes = size_t{1} << 20;  // of the part of the matrix
    const auto row = static_cast<int64_t>(gguf::row_bytes(matrix->type, matrix->cols));
    const int64_t rows = std::min(matrix->rows, std::max<int64_t>(1, static_cast<int64_t>(kBytes) / row));
    const OneMatrix one(*matrix, rows, kTokens);
    const auto backend = kernels::cpu_device(threads)->backend();
    backend->load(one.program, {}, kTokens);
    std::vector<int32_t> tokens(kTokens), positions(kTokens);
    for (int32_t i = 0; i < kTokens; ++i) tokens[static_cast<size_t>(i)] = i % 16;
    std::iota(positions.begin(), positions.end(), 0);
    const kernels::SequenceSpan span{.first = 0, .count = kTokens, .past = 0, .tables = {}};
    const kernels::Batch batch{
        .tokens = tokens, .positions = positions, .sequences = {&span, 1}, .logit_rows = {}};
    double best = 0;
    const auto start = Clock::now();
    for (int i = 0; i < 20 && (i < 3 || seconds_since(start) < 0.5); ++i) {
        const auto begin = Clock::now();
        backend->execute(batch, std::span<float>());
        best = std::max(best, one.operations() / seconds_since(begin));
    }
    return best;
}

Roofline measure_roofline(const RooflineOptions &options, decode::Engine &engine, DeviceLimits &limits,
                          const StopRequest &stop) {
    const Program &program = engine.model().program;
    Roofline result;
    result.prompt = options.prompt, result.generate = options.generate;
    const auto read = [&] { result.bandwidth = std::max(result.bandwidth, limits.bandwidth()); };
    Passes passes{SingleSequence(engine.executor()), std::mt19937(1),
                  static_cast<uint32_t>(engine.model().hyper.vocab), stop};
    passes.feed(1);  // brings the weights into memory
    options.show("multiply rate");
    if (limits.of_gpu()) {
        result.multiply_rate = limits.tensor_rate();
        result.multiply_of = "multiplications of 16-bit matrices";
    } else {
        std::string format;
        result.multiply_rate = multiply_rate(engine, options.threads, format);
        result.multiply_of = "the kernel for " + format + " on a matrix in the cache";
    }
    result.in_cache = limits.in_cache(static_cast<double>(program.weight_bytes_per_token()));
    for (int32_t tokens = 1; tokens <= options.longest_pass; tokens *= 2) {
        options.show("prefill of " + std::to_string(tokens));
        read();
        std::vector<double> times;
        const auto start = Clock::now();
        for (int32_t i = 0; i < options.repetitions && (i == 0 || seconds_since(start) < kLongest); ++i) {
            passes.sequence.truncate(0);
            times.push_back(passes.feed(tokens));
        }
        result.points.push_back(
            {"prefill", tokens, 0, median(times), pass_cost(program, 0, tokens, options.types)});
    }
    options.show("prompt of " + std::to_string(options.prompt));
    passes.sequence.truncate(0);
    result.first_token = passes.feed(options.prompt);
    options.show("answer of " + std::to_string(options.generate));
    read();
    for (int32_t i = 1; i < options.generate; ++i) result.steps.push_back(passes.feed(1));
    read();
    result.points.push_back({"decode", 1, options.prompt, median(result.steps),
                             decode_cost(program, options.prompt, options.generate - 1, options.types)});
    result.bandwidth_of = limits.method();
    // No measured rate lies above the roof, so raise the roof to the highest one.
    for (const RooflinePoint &point : result.points)
        result.multiply_rate = std::max(result.multiply_rate, point.rate());
    return result;
}

}  // namespace runnel::measure
