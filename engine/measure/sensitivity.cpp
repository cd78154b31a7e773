#include "engine/measure/sensitivity.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "engine/measure/logits_file.h"
#include "gguf/base/interrupted.h"

namespace runnel::measure {
namespace {

void run_all(PerplexityRun &run, const StopRequest &stop) {
    while (run.done() < run.chunks())
        if (!run.step(&stop)) throw base::Interrupted{};
}

}  // namespace

bool replace_rows(kernels::Program &program, const gguf::Tensor &tensor, const ReplacedTensor &by) {
    const size_t row_before = gguf::row_bytes(tensor.type, tensor.shape[0]),
                 row_after = gguf::row_bytes(by.type, tensor.shape[0]);
    const std::less<> before;
    bool used = false;
    for (kernels::Weight &weight : program.weights) {
        if (!weight.data || before(weight.data, tensor.data) ||
            !before(weight.data, tensor.data + tensor.bytes) || weight.type != tensor.type ||
            weight.cols != tensor.shape[0])
            continue;
        const auto offset = static_cast<size_t>(weight.data - tensor.data);
        if (offset % row_before != 0) continue;
        weight.data = by.data.data() + offset / row_before * row_after;
        weight.type = by.type;
        used = true;
    }
    return used;
}

Sensitivity::Sensitivity(decode::Engine &engine, std::vector<TokenId> tokens, int32_t context,
                         const StopRequest &stop)
    : engine_(engine), tokens_(std::move(tokens)), context_(context) {
    PerplexityRun run(
        engine_.executor(), tokens_, context_, text_begin(engine_.tokenizer()),
        [&](std::span<const float> logits) { compress_row(logits, base_.emplace_back()); }, BaseRow());
    run_all(run, stop);
}

Sensitivity::Result Sensitivity::divergence(std::span<const ReplacedTensor> replaced,
                                            const StopRequest &stop) {
    kernels::Program program = engine_.model().program;
    Result result;
    for (const ReplacedTensor &by : replaced) {
        if (by.data.empty()) continue;
        const gguf::Tensor *tensor = engine_.file().find_tensor(by.name);
        if (tensor && replace_rows(program, *tensor, by))
            result.used = true;
        else
            result.unused.push_back(by.name);
    }
    if (!result.used) return result;
    std::vector<std::string> notes;
    const std::unique_ptr<Executor> executor = engine_.executor_beside(program, 1, notes);
    std::vector<float> row(static_cast<size_t>(executor->vocab()));
    size_t next = 0;
    PerplexityRun run(*executor, tokens_, context_, text_begin(engine_.tokenizer()), SaveRow(), [&] {
        expand_row(base_[next++], row);
        return std::span<const float>(row);
    });
    double before = 0;
    while (run.done() < run.chunks()) {
        if (!run.step(&stop)) throw base::Interrupted{};
        const double sum = run.result().divergence->mean * static_cast<double>(run.done());
        result.chunks.push_back(sum - before);
        before = sum;
    }
    const Perplexity::Divergence divergence = *run.result().divergence;
    result.divergence = std::max(0.0, divergence.mean);
    result.error = divergence.error;
    return result;
}

}  // namespace runnel::measure
