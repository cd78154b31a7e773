#include "engine/commands/quantize/gptq_run.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "engine/commands/quantize/model_output.h"
#include "engine/commands/quantize/occurrences.h"
#include "engine/model/model.h"
#include "engine/quantize/gptq.h"
#include "engine/quantize/parallel.h"
#include "engine/quantize/rows.h"
#include "gguf/block_grid.h"
#include "gguf/printable.h"
#include "gguf/quantize.h"
#include "kernels/activation_run.h"
#include "kernels/steps.h"

namespace runnel::commands {
namespace {

using quantize::Feedback, quantize::Hessian, quantize::PlannedTensor;

constexpr uint64_t kMostHessianBytes = uint64_t{2} << 30;  // collected in one run of the text
// Hessians of fewer rows than this share of the columns say too little about them.
constexpr int64_t kFewestRowsShare = 4;

// A tensor to quantize. Experts and heads have several matrices.
struct Target {
    const PlannedTensor *planned;
    std::vector<std::byte> data;  // as planned
    int64_t left;                 // matrices not quantized yet

    const gguf::Tensor &source() const { return *planned->source; }
    int64_t columns() const { return source().shape[0]; }
    int64_t rows() const { return source().shape[1]; }  // of one matrix
    int64_t matrices() const { return source().elements() / (columns() * rows()); }
};

// An input row of the model and the matrices that are multiplied with it: matrix `matrix` of each target.
struct Input {
    size_t step;  // of the program
    int32_t layer;
    int64_t matrix;
    std::vector<Target *> targets;
    std::unique_ptr<Hessian> hessian = nullptr;

    int64_t columns() const { return targets.front()->columns(); }
};

class GptqRun {
  public:
    GptqRun(const gguf::File &source, const quantize::QuantizePlan &plan,
            const quantize::QuantizeRequest &request, const CalibrationText &text,
            const decode::StopRequest &stop, Io &io)
        : source_(source),
          request_(request),
          stop_(stop),
          program_(model::build(source, text.chunk_size).program),
          tokens_(chunks_of(text, text::Tokenizer::load(source), stop, io)),
          chunk_size_(text.chunk_size),
          cpu_(kernels::cpu_device(request.threads)),
          bar_("gptq", "%", 100, io) {
        find_targets(plan);
        find_inputs();
    }

    GptqResult run() {
        set_work();
        for (size_t first = 0; first < inputs_.size();) {
            const size_t end = group_end(first);
            calibrate(std::span(inputs_).subspan(first, end - first));
            for (size_t i = first; i < end; ++i) quantize(inputs_[i]);
            first = end;
        }
        return std::move(result());
    }

  private:
    void find_targets(const quantize::QuantizePlan &plan) {
        for (const PlannedTensor &planned : plan.tensors) {
            const gguf::Tensor &from = *planned.source;
            if (planned.type == from.type || !gguf::traits(planned.type).quantized || from.rank < 2) continue;
            // An importance matrix of the user is as good for these.
            if (!gguf::has_grid(planned.type) && request_.importance) {
                no_grid_.add(quantize::called(from));
                continue;
            }
            Target target{&planned, {}, 0};
            target.left = target.matrices();
            targets_.emplace(std::string(from.name), std::move(target));
        }
    }

    // The target whose matrices this weight holds; null for others and for those that have been found before.
    Target *target_of(kernels::WeightId id, size_t step) {
        const kernels::Weight &weight = program_.weights[static_cast<size_t>(id)];
        const auto found = targets_.find(weight.name);
        if (found == targets_.end()) return nullptr;
        Target &target = found->second;
        if (weight.cols != target.columns() || weight.type != target.source().type ||
            weight.count != target.matrices())
            return nullptr;
        const auto [at, is_new] = step_of_.emplace(weight.name, step);
        if (!is_new && at->second != step) shared_.insert(weight.name);
        return is_new ? &target : nullptr;
    }

    void add_inputs(size_t step, std::span<const kernels::WeightId> weights) {
        std::vector<Target *> targets;
        for (const kernels::WeightId id : weights)
            if (id != kernels::kNoWeight)
                if (Target *target = target_of(id, step)) targets.push_back(target);
        if (targets.empty()) return;
        for (int64_t m = 0; m < targets.front()->matrices(); ++m)
            inputs_.push_back({step, kernels::layer_of(program_.steps[step]), m, targets});
    }

    // In the order of the program.
    void find_inputs() {
        for (size_t i = 0; i < program_.steps.size(); ++i)
            for (const std::vector<kernels::WeightId> &weights :
                 kernels::matrices_by_input(program_.steps[i]))
                add_inputs(i, weights);
        // Inputs of several steps differ, and the first of them would be taken for all.
        for (Input &input : inputs_)
            std::erase_if(input.targets, [&](const Target *target) {
                return shared_.contains(std::string(target->source().name));
            });
        std::erase_if(inputs_, [](const Input &input) { return input.targets.empty(); });
    }

    // Inputs [first, result) are of one layer and fit the memory; at least one.
    size_t group_end(size_t first) const {
        uint64_t bytes = 0;
        size_t end = first;
        while (end < inputs_.size() && inputs_[end].layer == inputs_[first].layer) {
            bytes += quantize::hessian_bytes(inputs_[end].columns());
            if (end > first && bytes > kMostHessianBytes) break;
            ++end;
        }
        return end;
    }

    double work_of_text(size_t last_step) const {
        double weights = 0;
        for (size_t i = 0; i <= last_step; ++i)
            kernels::visit_matrices(program_.steps[i], [&](kernels::WeightId id, kernels::Use use) {
                const kernels::Weight &weight = program_.weights[static_cast<size_t>(id)];
                weights += static_cast<double>(weight.rows * weight.cols) * std::max(1, use.experts);
            });
        return 2 * weights * static_cast<double>(tokens_.size());
    }

    static double work_of(const Input &input) {
        const auto n = static_cast<double>(input.columns());
        double rows = 0;
        for (const Target *target : input.targets) rows += static_cast<double>(target->rows());
        return 2 * n * n * (rows + n / 3);
    }

    void set_work() {
        for (size_t first = 0; first < inputs_.size(); first = group_end(first))
            all_work_ += work_of_text(inputs_[group_end(first) - 1].step);
        for (const Input &input : inputs_) all_work_ += work_of(input);
    }

    void advance(double work) {
        done_work_ += work;
        bar_.update(static_cast<int64_t>(100 * done_work_ / all_work_));
        if (stop_.requested()) throw Interrupted{};
    }

    // Collects the Hessians of these inputs.
    void calibrate(std::span<Input> group) {
        std::map<std::pair<std::string_view, int64_t>, Hessian *> hessians;
        for (Input &input : group) {
            input.hessian = std::make_unique<Hessian>(input.columns());
            // The other targets get the same rows.
            hessians[{input.targets.front()->source().name, input.matrix}] = input.hessian.get();
        }
        const auto sink = [&](std::string_view tensor, int64_t matrix, int64_t, std::span<const float> row) {
            if (const auto found = hessians.find({tensor, matrix}); found != hessians.end())
                found->second->add(row, request_.threads);
        };
        const size_t last = group.back().step;
        kernels::Program program = program_;
        const bool with_output = last + 1 == program.steps.size();
        // Later layers need not run. The last step, which makes the logits, has to be there.
        if (!with_output)
            program.steps.erase(program.steps.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                                program.steps.end() - 1);
        kernels::ActivationRun run(program, *cpu_, chunk_size_, with_output, sink);
        const auto size = static_cast<size_t>(chunk_size_);
        const double work =
            work_of_text(last) * static_cast<double>(size) / static_cast<double>(tokens_.size());
        for (size_t at = 0; at < tokens_.size(); at += size) {
            if (!run.run(std::span(tokens_).subspan(at, size), stop_.flag())) throw Interrupted{};
            advance(work);
        }
        for (Input &input : group) {
            input.hessian->finish(request_.threads);
            if (!input.hessian->is_finite())
                throw InputError("the inputs of " + quantize::called(input.targets.front()->source()) +
                                 " are not finite numbers on this text: GPTQ is not possible");
        }
    }

    // All matrices of the input.
    void quantize(Input &input) {
        const auto note = [&](Occurrences &what) {
            for (const Target *target : input.targets) what.add(quantize::called(target->source()));
        };
        std::vector<Feedback> feedback;
        const bool enough = input.hessian->rows() * kFewestRowsShare >= input.columns();
        if (!enough) note(few_rows_);
        for (size_t b = 0; b < input.hessian->bands().size() && enough && any_grid(input); ++b) {
            std::optional<Feedback> band = quantize::feedback_of(*input.hessian, b, request_.threads);
            if (!band) {
                note(unsolved_);
                feedback.clear();
                break;
            }
            feedback.push_back(std::move(*band));
        }
        if (feedback.size() > 1) note(banded_);
        if (std::ranges::any_of(feedback, [](const Feedback &f) { return f.damping > 0.01; })) note(damped_);
        std::vector<float> importance = input.hessian->mean_squares();
        if (input.hessian->rows() == 0) std::ranges::fill(importance, 1.0f);
        input.hessian.reset();
        for (Target *target : input.targets) quantize(*target, input.matrix, feedback, importance);
        advance(work_of(input));
    }

    static bool any_grid(const Input &input) {
        return std::ranges::any_of(
            input.targets, [](const Target *target) { return gguf::has_grid(target->planned->type); });
    }

    // One matrix of the target. Without feedback, by the search for the importance.
    void quantize(Target &target, int64_t matrix, std::span<const Feedback> feedback,
                  std::span<const float> importance) {
        const gguf::Type type = target.planned->type;
        const size_t row_bytes = gguf::row_bytes(type, target.columns());
        if (target.data.empty())
            target.data.resize(row_bytes * static_cast<size_t>(target.rows() * target.matrices()));
        const int64_t first = matrix * target.rows();
        std::byte *const blocks = target.data.data() + row_bytes * static_cast<size_t>(first);
        const auto read = [&](int64_t row, std::span<float> values) {
            if (stop_.requested()) throw Interrupted{};
            quantize::read_row(target.source(), first + row, values);
        };
        const std::string name = quantize::called(target.source());
        if (!feedback.empty() && gguf::has_grid(type)) {
            quantize::gptq(type, target.rows(), feedback, read, request_.threads, name, blocks);
            ++done_;
        } else {
            if (!gguf::has_grid(type)) no_grid_.add(name);
            search(target, first, importance, blocks);
        }
        if (--target.left > 0) return;
        replace(target);
    }

    // llama.cpp's search with importance, for the rows of one matrix.
    void search(const Target &target, int64_t first, std::span<const float> importance,
                std::byte *blocks) const {
        const gguf::Type type = target.planned->type;
        const size_t row_bytes = gguf::row_bytes(type, target.columns());
        quantize::in_parallel(request_.threads, target.rows(), 16, [&](int64_t begin, int64_t end) {
            std::vector<float> values(static_cast<size_t>(target.columns()));
            for (int64_t row = begin; row < end; ++row)
                quantize::convert_row(quantize::Method::Standard, target.source(), first + row, type, nullptr,
                                      importance, values, blocks + static_cast<size_t>(row) * row_bytes);
        });
    }

    // Later layers see the quantized tensor.
    void replace(Target &target) {
        result_.tensors.push_back(
            {std::string(target.source().name), target.planned->type, std::move(target.data)});
        measure::replace_rows(program_, target.source(), result_.tensors.back());
    }

    GptqResult &result() {
        std::vector<std::string> &notes = result_.notes;
        notes.push_back(
            "gptq: " + plural(done_, "matrix", "matrices") + " on " + std::to_string(tokens_.size()) +
            " tokens; the inputs of a layer come from the model with all earlier layers quantized");
        for (const auto &[name, target] : targets_)
            if (target.left > 0) outside_.add(quantize::called(target.source()));
        outside_.report(notes, "gptq",
                        "not calibrated, because the model reads them row by row, in several places, "
                        "in another form or not at all; quantized as with --method standard");
        no_grid_.report(notes, "gptq",
                        "of a type that GPTQ cannot round column by column; by the imatrix search");
        few_rows_.report(notes, "gptq",
                         "fewer input rows than a quarter of the columns; by the imatrix search (a "
                         "longer text, or more --chunks, gives more)");
        unsolved_.report(notes, "gptq", "the Hessian is not positive definite; by the imatrix search");
        damped_.report(notes, "gptq", "the Hessian needed more damping than 0.01");
        banded_.report(notes, "gptq",
                       "more than " + std::to_string(quantize::kMostColumns) +
                           " columns: errors are fed back within bands of " +
                           std::to_string(quantize::kBandColumns) + " columns only");
        return result_;
    }

    const gguf::File &source_;
    const quantize::QuantizeRequest &request_;
    const decode::StopRequest &stop_;
    kernels::Program program_;  // with the weights quantized so far
    std::vector<text::TokenId> tokens_;
    int32_t chunk_size_;
    kernels::DevicePtr cpu_;
    CountBar bar_;
    std::map<std::string, Target, std::less<>> targets_;  // by name in the source
    std::map<std::string, size_t> step_of_;               // first step that a target is found in
    std::set<std::string> shared_;                        // targets of several steps
    std::vector<Input> inputs_;
    GptqResult result_;
    double all_work_ = 0, done_work_ = 0;
    size_t done_ = 0;
    Occurrences outside_, no_grid_, few_rows_, unsolved_, damped_, banded_;
};

}  // namespace

GptqResult run_gptq(const gguf::File &source, const quantize::QuantizePlan &plan,
                    const quantize::QuantizeRequest &request, const CalibrationText &text, Io &io) {
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    return GptqRun(source, plan, request, text, stop, io).run();
}

}  // namespace runnel::commands
