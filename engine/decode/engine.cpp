#include "engine/decode/engine.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <limits>
#include <system_error>
#include <variant>

#include "engine/decode/cache_plan.h"
#include "engine/decode/error.h"
#include "engine/model/window.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/devices.h"

namespace runnel::decode {
namespace {

// On a second thread where the system gives one, otherwise when it is asked for.
std::future<text::Tokenizer> load_tokenizer(const gguf::File &file) {
    const auto load = [&file] { return text::Tokenizer::load(file); };
    try {
        return std::async(std::launch::async, load);
    } catch (const std::system_error &) {
        return std::async(std::launch::deferred, load);
    }
}

// No layer sees further back than a window: a sequence may be of any length.
bool bound_by_window(const kernels::Program &program) {
    return std::all_of(program.steps.begin(), program.steps.end(), [](const kernels::Step &step) {
        const auto *attention = std::get_if<kernels::Attention>(&step);
        return !attention || attention->window > 0;
    });
}

}  // namespace

Engine::Engine(const EngineOptions &options) : file_(gguf::File::open(options.model)) {
    std::future<text::Tokenizer> tokenizer = load_tokenizer(file_);
    model_ = model::build(file_, options.context);
    if (options.cache.window > 0)
        model::impose_window(model_.program, options.cache.window, options.cache.sinks);
    start(options);
    tokenizer_ = std::make_unique<text::Tokenizer>(tokenizer.get());
    if (!tokenizer_->note().empty()) notes_.push_back(tokenizer_->note());
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (TokenId id = 0; id < model_.program.vocab; ++id)
        if (!tokenizer_->is_sampleable(id)) never_.emplace_back(id, kNever);
    load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

void Engine::start(const EngineOptions &options) {
    threads_ = options.threads;
    const bool cpu = options.device.device == "cpu";  // looking for others takes a moment
    const DeviceChoice choice =
        cpu ? DeviceChoice{}
            : choose_device(options.device, kernels::cuda::find_devices(), model_.hyper.block_count);
    if (!choice.note.empty()) notes_.push_back(choice.note);
    if (choice.cuda) {
        const auto pass_over = [&](const std::exception &error) {
            notes_.assign(1, std::string(error.what()) + "; everything runs on the CPU");
        };
        try {
            start_executor(options, kernels::cuda::make_cuda_backend(*choice.cuda));
            cuda_ = choice.cuda;
            return;
        } catch (const kernels::BackendError &error) {
            if (choice.required) throw;
            pass_over(error);
        } catch (const DecodeError &error) {
            if (choice.required || error.kind != DecodeError::Kind::OutOfMemory) throw;
            pass_over(error);
        }
    }
    start_executor(options, kernels::cpu::make_cpu_backend(options.threads));
}

void Engine::start_executor(const EngineOptions &options, std::unique_ptr<kernels::Backend> backend) {
    const bool endless = bound_by_window(model_.program) && options.cache.window > 0;
    const int64_t made_for = endless ? kMostContext : model_.hyper.context_length;
    const ContextPlan plan = plan_context(model_.program, backend->info(),
                                          {.own = made_for,
                                           .asked = options.context,
                                           .cache_size = options.cache.size,
                                           .sequences = options.sequences,
                                           .batch = options.batch,
                                           .types = options.cache.types});
    const std::string own = std::to_string(model_.hyper.context_length);
    if (plan.reduced)
        notes_.push_back("context reduced from " + own + " to " + std::to_string(plan.context) +
                         " tokens, which is what fits the free memory (choose with -c)");
    if (plan.context > made_for)
        notes_.push_back("the context of " + std::to_string(plan.context) + " tokens is longer than the " +
                         own + " that the model was made for");
    executor_ = std::make_unique<Executor>(std::move(backend), model_.program,
                                           ExecutorOptions{.context = plan.context,
                                                           .batch = options.batch,
                                                           .sequences = options.sequences,
                                                           .cells = plan.cells,
                                                           .types = options.cache.types});
}

std::unique_ptr<kernels::Backend> Engine::another_backend() const {
    return cuda_ ? kernels::cuda::make_cuda_backend(*cuda_) : kernels::cpu::make_cpu_backend(threads_);
}

Sampler Engine::sampler(SamplingOptions options) const {
    const auto vocab = static_cast<int32_t>(model_.program.vocab);
    if (!options.logit_bias.empty()) Sampler(options, vocab);  // checks the user's, before ours join them
    options.logit_bias.insert(options.logit_bias.end(), never_.begin(), never_.end());
    return Sampler(std::move(options), vocab);
}

}  // namespace runnel::decode
