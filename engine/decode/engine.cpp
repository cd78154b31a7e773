#include "engine/decode/engine.h"

#include <algorithm>
#include <cassert>
#include <future>
#include <limits>
#include <numeric>
#include <system_error>

#include "engine/decode/cache_plan.h"
#include "engine/decode/error.h"
#include "engine/decode/gpu_selection.h"
#include "engine/decode/scheduled_sequence.h"
#include "engine/model/draft_block.h"
#include "engine/model/first_layers.h"
#include "engine/model/notes.h"
#include "engine/model/window.h"
#include "gguf/base/bytes.h"
#include "gguf/base/timer.h"
#include "kernels/device.h"
#include "kernels/group_backend.h"
#include "kernels/split_backend.h"
#include "kernels/steps.h"
#include "kernels/tensor_backend.h"

namespace runnel::decode {
namespace {

// Loads on a second thread, or, if none can be started, when the future is read.
std::future<text::Tokenizer> load_tokenizer(const gguf::File &file) {
    const auto load = [&file] { return text::Tokenizer::load(file); };
    try {
        return std::async(std::launch::async, load);
    } catch (const std::system_error &) {
        return std::async(std::launch::deferred, load);
    }
}

// GPU memory for `program` next to a model with a cache of `shape`. `own`: the program's longest context.
size_t need_beside(const kernels::Device &gpu, const kernels::Program &program, CacheShape shape,
                   int64_t context, int64_t own) {
    const int64_t longest = std::min(context, own);
    if (longest < context) shape.cells = std::min(shape.cells, cells_for(longest, shape.sequences));
    return gpu.need(program, cache_config(program, shape, longest), shape.batch).all();
}

// Whether a head reads the model's own cache.
bool reads_model_cache(model::HeadKind kind) {
    return kind == model::HeadKind::Assistant;
}

// True if every layer has a window: a sequence may then be of any length.
bool bound_by_window(const kernels::Program &program) {
    bool bound = true;
    for (const kernels::Step &step : program.steps)
        kernels::visit_caches(step, [&](const kernels::CacheUse &use) { bound = bound && use.window > 0; });
    return bound;
}

}  // namespace

Engine::Engine(const EngineOptions &options) : file_(gguf::File::open(options.model)) {
    std::future<text::Tokenizer> tokenizer = load_tokenizer(file_);
    std::vector<std::string> notes;
    model_ = model::build(file_, options.context, notes);
    if (options.cache.window > 0)
        model::impose_window(model_.program, options.cache.window, options.cache.sinks);
    if (options.head.empty())
        find_draft_block(options);
    else
        open_head(options);
    start(options);
    if (std::string note = cpu_->note(); !note.empty()) notes_.push_back(std::move(note));
    if (options.weights.copied) file_.drop_pages();
    tokenizer_ = std::make_unique<text::Tokenizer>(tokenizer.get());
    if (!tokenizer_->note().empty()) notes_.push_back(tokenizer_->note());
    notes_.insert(notes_.end(), notes.begin(), notes.end());
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (TokenId id = 0; id < model_.program.vocab; ++id)
        if (!tokenizer_->is_sampleable(id)) never_.emplace_back(id, kNever);
    load_seconds_ = base::seconds_since(started_);
}

void Engine::find_draft_block(const EngineOptions &options) {
    if (options.mtp == Mtp::Off) return;
    try {
        draft_blocks_ = model::draft_blocks(file_, options.context);
    } catch (const model::ModelError &error) {
        if (options.mtp == Mtp::On) throw;
        notes_.push_back(std::string("drafts without the next-token-prediction block: ") + error.what());
        return;
    }
    if (draft_blocks_.empty())
        no_draft_block_ = model_.hyper.draft_layers == 0
                              ? "the file has no next-token-prediction block"
                              : "the next-token-prediction block of this file is not supported";
    else if (options.cache.window > 0)
        no_draft_block_ = draft_block_cannot("does not work with --window");
    else if (!whole_group(model_.program))
        no_draft_block_ = draft_block_cannot("needs a model with a full attention layer");
    if (!no_draft_block_.empty()) draft_blocks_.clear();
}

std::string Engine::draft_block_cannot(const std::string &what) const {
    const auto kind = head_file_ ? model::head_kind(*head_file_) : std::nullopt;
    return (kind ? std::string(model::head_title(*kind)) : "the next-token-prediction block") + " " + what;
}

void Engine::open_head(const EngineOptions &options) {
    head_file_ = gguf::File::open(options.head);
    if (options.cache.window > 0)
        no_draft_block_ = draft_block_cannot("does not work with --window");
    else if (const auto kind = model::head_kind(*head_file_);
             kind && reads_model_cache(*kind) && runs_all_layers(options.device.split))
        no_draft_block_ = draft_block_cannot("needs the whole model on one device: leave out " +
                                             option_of(options.device.split));
    else if (!whole_group(model_.program))
        no_draft_block_ = draft_block_cannot("needs a model with a full attention layer");
    if (!no_draft_block_.empty()) return;
    head_ = model::add_head(model_, file_, *head_file_, options.context);
    draft_blocks_ = {head_->program};
    for (const std::string &note : head_->notes) notes_.push_back("draft: " + note);
}

bool Engine::needs_one_device() const {
    return head_ && reads_model_cache(head_->kind);
}

HiddenStates::Pairs Engine::pairs() const {
    if (head_ && head_->kind == model::HeadKind::Eagle3) return HiddenStates::Pairs::WithNext;
    if (head_ && head_->kind == model::HeadKind::DFlash) return HiddenStates::Pairs::Alone;
    return HiddenStates::Pairs::WithBefore;
}

void Engine::start(const EngineOptions &options) {
    progress_ = options.progress;
    kernels::WeightStorage storage = options.weights;
    storage.rearranged &=
        options.sequences <= kernels::kRearrangedSequences && kernels::started_together() == 1;
    cpu_ = kernels::cpu_device(options.threads, storage);
    devices_ = {cpu_};
    DeviceChoice choice;
    const bool all_layers = runs_all_layers(options.device.split);
    if (const int processes = kernels::started_together(); all_layers && processes > 1)
        return start_processes(options, processes);
    if (all_layers || options.device.device != cpu_->name())  // listing GPUs takes a moment
        choice = choose_device(options.device, kernels::devices(options.threads));
    if (!choice.note.empty()) notes_.push_back(choice.note);
    if (all_layers) return start_tensor_split(options, choice);
    if (!choice.gpus.empty()) {
        const auto pass_over = [&](const std::string &why) {
            devices_ = {cpu_};
            placement_ = "all layers on the CPU";
            on_gpus_ = {};
            divided_ = false;
            model_.program.resident_experts = 0;
            notes_.assign(1, why + "; everything runs on the CPU");
        };
        try {
            if (start_on_gpus(options, choice)) return;
            pass_over("no layer of the model fits the GPU");
        } catch (const kernels::BackendError &error) {
            if (choice.required || error.kind == kernels::BackendError::Kind::Cancelled) throw;
            pass_over(error.what());
        }
    }
    start_executor(options,
                   plan_context(model_.program, *cpu_, cpu_->free_memory(), context_request_on_cpu(options)));
}

// Returns false, or throws if a GPU is required, when no layer fits.
bool Engine::start_on_gpus(const EngineOptions &options, const DeviceChoice &choice) {
    GpuSelection found = select_gpus(choice, cpu_, model_.program, options.device.placement,
                                     [&](const DeviceList &devices, const FreeMemory &free) {
                                         return plan_on_gpus(options, devices, free);
                                     });
    const size_t gpu_free = std::accumulate(found.free.begin(), found.free.end() - 1, size_t{0});
    const std::string has = found.devices.size() > 2 ? "the GPUs have " : "the GPU has ";
    const auto &plan = found.plan;
    if (!plan && choice.required)
        throw DecodeError(DecodeError::Kind::OutOfMemory,
                          "no layer of the model fits: " + has + std::to_string(gpu_free >> 20) +
                              " MiB free: choose a smaller context with -c, or --device cpu");
    if (!plan) return false;
    devices_ = std::move(found.devices);
    for (size_t gpu = 0; gpu + 1 < devices_.size(); ++gpu)
        if (std::string note = devices_[gpu]->note(); !note.empty()) notes_.push_back(std::move(note));
    on_gpus_ = plan->placement;
    model_.program.resident_experts = on_gpus_.resident_experts;
    placement_ = placement_text(model_.program, devices_, on_gpus_);
    divided_ = plan->divided;
    if (!plan->missing.empty()) notes_.push_back(plan->missing + "; the steps that need it run on the CPU");
    if (!is_as_requested(on_gpus_, options.device.placement))
        notes_.push_back(placement_ + resident_text(model_.program, on_gpus_) + ": " + has +
                         std::to_string(gpu_free >> 20) + " MiB free");
    note_experts(options.device.placement.gpu_experts, plan->gpu.host);
    start_executor(options, plan->context);
    return true;
}

// What --gpu-experts takes of host memory, and where it does something else than it says.
void Engine::note_experts(std::optional<int32_t> asked, size_t host_bytes) {
    if (!asked) return;
    const int32_t resident = on_gpus_.resident_experts;
    if (kernels::expert_counts(model_.program).all == 0)
        notes_.push_back("--gpu-experts: the model has no experts");
    else if (resident > *asked && *asked > 0)
        notes_.push_back("--gpu-experts " + std::to_string(*asked) + ": a token uses " +
                         std::to_string(resident) + ", so the GPU holds as many");
    if (host_bytes > 0)
        notes_.push_back("the experts of all layers take " + base::mebibytes(host_bytes) + " of host memory");
}

void Engine::start_tensor_split(const EngineOptions &options, const DeviceChoice &choice) {
    const bool by_cells = options.device.split == Split::Context;
    ContextRequest request = context_request(options);
    if (by_cells) request.ranks = ranks_ = static_cast<int32_t>(choice.gpus.size());
    TensorPlan plan = plan_with_drafts(options, choice, request);
    tensor_shares_ = std::move(plan.shares);
    matrix_cut_ = plan.matrices;
    devices_ = choice.gpus;
    for (const kernels::DevicePtr &gpu : devices_)
        if (std::string note = gpu->note(); !note.empty()) notes_.push_back(std::move(note));
    placement_ =
        "all layers on " + std::to_string(devices_.size()) + " GPUs, each with some rows of every matrix";
    if (by_cells) placement_ += " and some cells of the cache";
    if (plan.by_columns > 0)
        placement_ += " (of " + std::to_string(plan.by_columns) + " matrices some columns)";
    else if (options.device.split == Split::Columns)
        notes_.push_back(
            "--split columns: no matrix of this model can be cut by columns, so all are cut by rows, as with "
            "--split tensor");
    devices_.push_back(cpu_);
    start_executor(options, plan.context);
}

// Reserves room for what drafts on the first GPU, unless not even a short context would fit then: loading it reports the
// error later.
TensorPlan Engine::plan_with_drafts(const EngineOptions &options, const DeviceChoice &choice,
                                    const ContextRequest &request) const {
    const kernels::Program program = program_to_load();
    const auto matrices =
        options.device.split == Split::Columns ? kernels::MatrixCut::Columns : kernels::MatrixCut::Rows;
    const auto plan = [&](const ContextRequest &one) {
        return plan_tensor_split(program, choice.gpus, options.device.placement, one, matrices);
    };
    if (draft_blocks_.empty()) return plan(request);
    ContextRequest both = request;
    both.beside = [&](const CacheShape &shape, int64_t) {
        return draft_bytes_on(*choice.gpus.front(), shape, options.sequences);
    };
    try {
        return plan(both);
    } catch (const std::runtime_error &) {
        return plan(request);
    }
}

// The first process leads; the others do what it does, and end with it.
void Engine::start_processes(const EngineOptions &options, int processes) {
    if (options.device.device != "auto" && options.device.device != cpu_->name())
        throw DecodeError(DecodeError::Kind::BadInput,
                          "several processes run a model on CPUs only: leave out --device");
    if (options.device.split == Split::Columns)
        throw DecodeError(DecodeError::Kind::BadInput,
                          "--split columns needs GPUs, but several processes run a model on CPUs: choose "
                          "--split tensor");
    ContextRequest request = context_request_on_cpu(options);
    const bool by_cells = options.device.split == Split::Context;
    if (by_cells) request.ranks = ranks_ = processes;
    const kernels::Program program = program_to_load();
    TensorPlan plan = plan_processes(program, cpu_, processes, options.device.placement, request);
    kernels::Communicator &group = kernels::process_group(options.on_silence);
    if (group.rank() > 0) {
        const auto device = cpu_->backend();
        try {
            kernels::follow(*device, group, program, plan.shares);
        } catch (const kernels::BackendError &) {
            throw kernels::LeaderEnded{.failed =
                                           true};  // the leader reports the error, with this process's number
        }
        throw kernels::LeaderEnded{};
    }
    tensor_shares_ = std::move(plan.shares);
    processes_ = &group;
    placement_ =
        "all layers on " + std::to_string(processes) + " processes, each with some rows of every matrix";
    if (by_cells) placement_ += " and some cells of the cache";
    start_executor(options, plan.context);
}

// Reserves room for the program that runs next to the model, unless layers would have to move to the CPU.
std::optional<PlacementPlan> Engine::plan_on_gpus(const EngineOptions &options, const DeviceList &devices,
                                                  const FreeMemory &free) const {
    const PlacementRequest &wanted = options.device.placement;
    ContextRequest request = context_request(options);
    const auto alone = [&] { return plan_placement(model_.program, devices, free, wanted, request); };
    std::optional<model::Model> other;
    std::optional<gguf::File> file;
    kernels::Program first;
    try {
        if (options.first_layers > 0) {
            first = model::first_layers(model_.program, options.first_layers);
        } else if (!options.beside.empty()) {
            file = gguf::File::open(options.beside);
            other = model::build(*file);
        } else if (draft_blocks_.empty()) {
            return alone();
        }
        ContextRequest both = request;
        both.beside = [&](const CacheShape &shape, int64_t context) {
            const kernels::Device &gpu = *devices.front();
            if (other) return need_beside(gpu, other->program, shape, context, other->hyper.context_length);
            if (draft_blocks_.empty()) return need_beside(gpu, first, shape, context, context);
            return draft_bytes_on(gpu, shape, options.sequences);
        };
        auto plan = plan_placement(model_.program, devices, free, wanted, both);
        if (plan && !plan->divided) return plan;
    } catch (const std::runtime_error &) {
        // Loading that program later reports the error.
    }
    return alone();
}

// What the draft blocks or the head take of the memory of a GPU, for drafts of so many sequences.
size_t Engine::draft_bytes_on(const kernels::Device &gpu, const CacheShape &shape, int32_t sequences) const {
    size_t bytes = 0;
    for (const kernels::Program &block : draft_blocks_)
        bytes += gpu.need(block, draft_block_cache(block, shape), shape.batch).all();
    if (head_ && !head_->block.steps.empty()) {
        kernels::CacheConfig shared = draft_block_cache(head_->block, shape);
        std::ranges::fill(shared.blocks, 0);
        const int32_t together = std::min(sequences, kMostDraftedTogether);
        bytes += gpu.need(head_->block, shared, together * head_->block_tokens).all();
    }
    return bytes;
}

// The program as the backend gets it from the executor.
kernels::Program Engine::program_to_load() const {
    return draft_blocks_.empty() ? model_.program
                                 : with_state_part(model_.program, model::state_of(draft_blocks_.front()));
}

// With room for what drafts, in host memory.
ContextRequest Engine::context_request_on_cpu(const EngineOptions &options) const {
    ContextRequest request = context_request(options);
    if (!draft_blocks_.empty())
        request.beside = [this](const CacheShape &shape, int64_t) {
            return draft_block_bytes(draft_blocks_, shape);
        };
    return request;
}

ContextRequest Engine::context_request(const EngineOptions &options) const {
    const model::HyperParameters &hyper = model_.hyper;
    const bool endless =
        bound_by_window(model_.program) && options.cache.window > 0 &&
        (!hyper.context_is_limit || options.cache.window + options.cache.sinks <= hyper.context_length);
    return {.own = endless ? kMostContext : model_.hyper.context_length,
            .asked = options.context,
            .cache_size = options.cache.size,
            .sequences = options.sequences,
            .batch = options.batch,
            .types = options.cache.types};
}

// The requested number of windows, or the number that fits in an eighth of the free memory if that is smaller.
int32_t Engine::kept_windows(const EngineOptions &options, const ContextPlan &plan) const {
    if (devices_.size() > 1 || options.cache.size > 0) return 0;
    CacheShape shape{.cells = plan.cells,
                     .sequences = options.sequences,
                     .batch = options.batch,
                     .types = options.cache.types};
    const size_t without = cache_bytes(model_.program, shape), most = cpu_->free_memory() / 8;
    for (shape.kept = options.kept_windows; shape.kept > 0; --shape.kept)
        if (cache_bytes(model_.program, shape) - without <= most) break;
    return shape.kept;
}

void Engine::start_executor(const EngineOptions &options, const ContextPlan &plan) {
    const std::string own = std::to_string(model_.hyper.context_length);
    if (plan.reduced)
        notes_.push_back("context reduced from " + own + " to " + std::to_string(plan.context) +
                         " tokens to fit the free memory (-c sets another)");
    if (plan.context > context_request(options).own)
        notes_.push_back("the context of " + std::to_string(plan.context) + " tokens is longer than the " +
                         own + " that the model was trained for");
    std::unique_ptr<kernels::Backend> backend =
        processes_ ? kernels::make_leading_backend(cpu_backend(), *processes_, tensor_shares_)
                   : another_backend();
    if (!draft_blocks_.empty() && divided_)
        no_draft_block_ = draft_block_cannot(
            "needs all layers on GPUs or all on the CPU (now: " + placement_ + "): add --device cpu");
    else if (needs_one_device() && devices_.size() > 2)
        no_draft_block_ = draft_block_cannot("needs all layers on one device (now: " + placement_ +
                                             "): choose one with --device");
    else if (!draft_blocks_.empty())
        backend = keep_hidden_states(std::move(backend), states_ = std::make_shared<HiddenStates>(pairs()),
                                     model::state_of(draft_blocks_.front()));
    executor_ = std::make_unique<Executor>(std::move(backend), model_.program,
                                           ExecutorOptions{.context = plan.context,
                                                           .batch = options.batch,
                                                           .sequences = options.sequences,
                                                           .cells = plan.cells,
                                                           .types = options.cache.types,
                                                           .kept = kept_windows(options, plan),
                                                           .ranks = ranks_});
}

std::string Engine::placement() const {
    return placement_;
}

std::string Engine::placement_details() const {
    const std::string gathers = executor_->gather_note();
    return placement_ + resident_text(model_.program, on_gpus_) + (gathers.empty() ? "" : ", " + gathers);
}

std::unique_ptr<kernels::Backend> Engine::cpu_backend() const {
    auto backend = cpu_->backend();
    backend->on_load(progress_);
    return backend;
}

std::unique_ptr<kernels::Backend> Engine::another_backend() const {
    const size_t gpus = devices_.size() - 1;
    if (gpus == 0) return cpu_backend();
    std::vector<std::unique_ptr<kernels::Backend>> backends;
    std::vector<std::string> names;
    for (const kernels::DevicePtr &device : devices_) {
        if (!divided_ && device == cpu_) break;
        backends.push_back(device->backend());
        backends.back()->on_load(progress_);
        names.push_back(device->name());
    }
    if (!tensor_shares_.empty()) {
        auto tensor = kernels::make_tensor_backend(std::move(backends), tensor_shares_, std::move(names),
                                                   kernels::communicate_in_process, matrix_cut_);
        tensor->on_load(progress_);
        return tensor;
    }
    if (backends.size() == 1) return std::move(backends.front());
    return kernels::make_split_backend(
        std::move(backends),
        [devices = devices_, placement = on_gpus_](const kernels::Program &p) {
            return assign_steps(p, devices, placement);
        },
        std::move(names));
}

std::unique_ptr<kernels::Backend> Engine::draft_backend() const {
    if (devices_.size() <= 2) return another_backend();
    assert(!divided_);
    const kernels::DevicePtr &gpu = tensor_shares_.empty() ? devices_[devices_.size() - 2] : devices_.front();
    std::vector<std::unique_ptr<kernels::Backend>> backend;
    backend.push_back(gpu->backend());
    backend.front()->on_load(progress_);
    // (A split over one device: its errors name the GPU.)
    return kernels::make_split_backend(
        std::move(backend), [](const kernels::Program &p) { return std::vector<uint8_t>(p.steps.size(), 0); },
        {gpu->name()});
}

std::unique_ptr<Executor> Engine::executor_beside(const kernels::Program &program, int32_t sequences,
                                                  std::vector<std::string> &notes) const {
    const ExecutorOptions options{
        .context = executor_->context(),
        .batch = executor_->batch_size(),
        .sequences = sequences,
        .cells = std::min(executor_->cells(), cells_for(executor_->context(), sequences)),
        .types = executor_->types()};
    const bool on_gpus = devices_.size() > 1;
    if (on_gpus && !divided_) try {
            return std::make_unique<Executor>(another_backend(), program, options);
        } catch (const kernels::BackendError &error) {
            if (error.kind != kernels::BackendError::Kind::OutOfMemory) throw;
        }
    if (on_gpus)
        notes.push_back("the GPU has no memory left for the drafts' cache: drafts are computed on the CPU");
    return std::make_unique<Executor>(cpu_->backend(), program, options);
}

Sampler Engine::sampler(SamplingOptions options) const {
    const auto vocab = static_cast<int32_t>(model_.program.vocab);
    if (!options.logit_bias.empty()) Sampler(options, vocab);  // checks the user's biases
    options.logit_bias.insert(options.logit_bias.end(), never_.begin(), never_.end());
    std::shared_ptr<const DryBreakers> breakers;
    if (options.dry_multiplier != 0 && !options.dry_breakers.empty()) {
        constexpr size_t kMostKnown = 16;
        if (breakers_.size() >= kMostKnown) breakers_.clear();
        std::shared_ptr<const DryBreakers> &known = breakers_[options.dry_breakers];
        if (!known)
            known = std::make_shared<const DryBreakers>(make_dry_breakers(*tokenizer_, options.dry_breakers));
        breakers = known;
    }
    Sampler sampler(std::move(options), vocab);
    sampler.set_dry_breakers(std::move(breakers));
    return sampler;
}

}  // namespace runnel::decode
