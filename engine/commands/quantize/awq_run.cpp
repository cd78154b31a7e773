#include "engine/commands/quantize/awq_run.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "engine/commands/figures.h"
#include "engine/commands/quantize/awq_sites.h"
#include "engine/commands/quantize/model_output.h"
#include "engine/commands/quantize/occurrences.h"
#include "engine/model/model.h"
#include "engine/quantize/channel_scales.h"
#include "engine/quantize/importance_sums.h"
#include "engine/quantize/rows.h"
#include "kernels/activation_run.h"
#include "kernels/steps.h"

namespace runnel::commands {
namespace {

using Site = AwqSite;
using kernels::WeightId;
using quantize::InputSample, quantize::PlannedTensor, quantize::TensorScales;

constexpr uint64_t kMostSampleBytes = uint64_t{256} << 20;  // collected in one run of the text
// Kept rows of an input. There are many inputs inside experts.
constexpr size_t kSamples = 512, kExpertSamples = 64;
// An input with fewer rows than this (of an expert that the text hardly reaches) is not scaled.
constexpr int64_t kFewestRows = 32;

size_t samples_of(const Site &site) {
    return site.input.expert < 0 ? kSamples : kExpertSamples;
}
uint64_t sample_bytes(const Site &site) {
    return quantize::input_sample_bytes(site.columns(), samples_of(site));
}

class AwqRun {
  public:
    AwqRun(const gguf::File &source, const quantize::QuantizePlan &plan,
           const quantize::QuantizeRequest &request, const CalibrationText &text,
           const decode::StopRequest &stop, Io &io)
        : source_(source),
          plan_(plan),
          request_(request),
          stop_(stop),
          program_(model::build(source, text.chunk_size).program),
          report_(find_awq_sites(source, program_, plan)),
          sites_(report_.scalable),
          tokens_(chunks_of(text, text::Tokenizer::load(source), stop, io)),
          chunk_size_(text.chunk_size),
          cpu_(kernels::cpu_device(request.threads)),
          bar_("awq", "%", 100, io) {
        for (const PlannedTensor &planned : plan.tensors) types_[planned.source] = planned.type;
    }

    AwqResult run() {
        set_work();
        for (size_t first = 0; first < sites_.size() || first == 0;) {
            const size_t end = group_end(first);
            std::vector<InputSample> samples = observe(first, end);
            if (first == 0) set_importance();
            for (size_t i = first; i < end; ++i) choose(sites_[i], samples[i - first]);
            if (end == first) break;
            first = end;
        }
        add_importance();
        report();
        return std::move(result_);
    }

  private:
    // Sites [first, result) fit the memory; at least one if there is one.
    size_t group_end(size_t first) const {
        uint64_t bytes = 0;
        size_t end = first;
        while (end < sites_.size()) {
            bytes += sample_bytes(sites_[end]);
            if (end > first && bytes > kMostSampleBytes) break;
            ++end;
        }
        return end;
    }

    size_t last_step(size_t first, size_t end) const {
        // The first run collects the importance of all matrices.
        if (first == 0) return program_.steps.size() - 1;
        return sites_[end - 1].input.readers.front();
    }

    double work_of_text(size_t last) const {
        double weights = 0;
        for (size_t i = 0; i <= last; ++i)
            kernels::visit_matrices(program_.steps[i], [&](WeightId id, kernels::Use use) {
                const kernels::Weight &weight = program_.weights[static_cast<size_t>(id)];
                weights += static_cast<double>(weight.rows * weight.cols) * std::max(1, use.experts);
            });
        return 2 * weights * static_cast<double>(tokens_.size());
    }

    static double work_of(const Site &site) {
        // A search for scales costs about as much as a product with this many rows.
        constexpr double kSearch = 256;
        double rows = 0;
        for (const Site::Reader &reader : site.readers) rows += static_cast<double>(reader.rows());
        return 2 * std::min<double>(rows, quantize::kScaleRows) * quantize::kScaleTrials *
               static_cast<double>(site.columns()) * (static_cast<double>(samples_of(site)) + kSearch);
    }

    void set_work() {
        all_work_ = 1;
        for (size_t first = 0; first < sites_.size() || first == 0;
             first = std::max(first + 1, group_end(first)))
            all_work_ += work_of_text(last_step(first, group_end(first)));
        for (const Site &site : sites_) all_work_ += work_of(site);
    }

    void advance(double work) {
        done_work_ += work;
        bar_.update(static_cast<int64_t>(100 * std::min(1.0, done_work_ / all_work_)));
        if (stop_.requested()) throw Interrupted{};
    }

    // The inputs of these sites on the text.
    std::vector<InputSample> observe(size_t first, size_t end) {
        std::vector<InputSample> samples;
        std::map<std::pair<std::string_view, int64_t>, size_t> wanted;
        for (size_t i = first; i < end; ++i) {
            const Site &site = sites_[i];
            samples.emplace_back(site.columns(), samples_of(site));
            // The other readers get the same rows.
            wanted[{site.readers.front().tensor->name, std::max(0, site.input.expert)}] = i - first;
        }
        const auto sink = [&](std::string_view tensor, int64_t matrix, int64_t matrices,
                              std::span<const float> row) {
            if (first == 0) sums_.add(tensor, matrix, matrices, row);
            if (const auto found = wanted.find({tensor, matrix}); found != wanted.end())
                samples[found->second].add(row);
        };
        const size_t last = last_step(first, end);
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
        for (size_t i = first; i < end; ++i)
            if (!samples[i - first].is_finite())
                throw InputError("the inputs of " + quantize::called(*sites_[i].readers.front().tensor) +
                                 " are not finite numbers on this text: AWQ is not possible");
        return samples;
    }

    // The importance of tensors that will be quantized: the request's, otherwise that of the text.
    void set_importance() {
        for (const PlannedTensor &planned : plan_.tensors) {
            const gguf::Tensor &tensor = *planned.source;
            if (!gguf::traits(planned.type).quantized || planned.type == tensor.type) continue;
            const auto sums = sums_.entries.find(tensor.name);
            std::vector<float> &importance = importance_[&tensor];
            if (const auto given = quantize::importance_of(tensor, request_.importance); !given.empty()) {
                const int64_t all = tensor.shape[0] * (tensor.elements() / tensor.shape[0] / tensor.shape[1]);
                for (int64_t i = 0; i < all; ++i)
                    importance.push_back(given[static_cast<size_t>(i) % given.size()]);
            } else if (sums != sums_.entries.end()) {
                importance = sums->second.importance();
            }
        }
    }

    void choose(const Site &site, const InputSample &sample) {
        if (sample.rows() < kFewestRows) return few_rows_.add(quantize::called(*site.readers.front().tensor));
        std::vector<quantize::ScaledMatrix> matrices;
        for (const Site::Reader &reader : site.readers) {
            const gguf::Tensor &tensor = *reader.tensor;
            const gguf::Type type = types_.at(&tensor);
            if (!gguf::traits(type).quantized) continue;
            const std::vector<float> &importance = importance_.at(&tensor);
            for (int64_t m = reader.matrix; m < reader.matrix + reader.matrices(); ++m) {
                const int64_t row = m * tensor.shape[1];
                matrices.push_back(
                    {&tensor, row, tensor.shape[1], type, quantize::row_importance(tensor, row, importance)});
            }
        }
        const double advanced =
            work_of(site) / (quantize::kScaleTrials * static_cast<double>(matrices.size()));
        const quantize::ChannelScales chosen =
            quantize::choose_scales(matrices, sample, site.input.channel_of, site.input.channels,
                                    request_.threads, [&] { advance(advanced); });
        before_ += chosen.before, after_ += chosen.after;
        if (chosen.scales.empty()) return not_better_.add(quantize::called(*site.readers.front().tensor));
        ++scaled_;
        fold_scales(site, chosen.scales, result_.scales);
    }

    // Scaled inputs are smaller by the scales of the columns.
    void add_importance() {
        for (auto &[tensor, importance] : importance_) {
            if (importance.empty()) continue;
            TensorScales &scales = result_.scales[std::string(tensor->name)];
            for (size_t i = 0; i < importance.size() && !scales.columns.empty(); ++i)
                importance[i] /= scales.columns[i] * scales.columns[i];
            scales.importance = std::move(importance);
        }
    }

    void report() {
        std::vector<std::string> &notes = result_.notes;
        std::string text = "awq: " + plural(scaled_, "input", "inputs") + " of matrices scaled on " +
                           std::to_string(tokens_.size()) + " tokens";
        if (before_ > 0)
            text +=
                format("; relative squared error of all products %.4g, without scales %.4g", after_, before_);
        notes.push_back(text);
        not_better_.report(notes, "awq", "no scales are better than none on this text", "input", "inputs");
        few_rows_.report(notes, "awq",
                         "fewer than " + std::to_string(kFewestRows) +
                             " rows on this text (a longer one, or more --chunks, gives more)",
                         "input", "inputs");
        for (std::string &note : awq_notes(report_)) notes.push_back(std::move(note));
    }

    const gguf::File &source_;
    const quantize::QuantizePlan &plan_;
    const quantize::QuantizeRequest &request_;
    const decode::StopRequest &stop_;
    kernels::Program program_;
    AwqSites report_;
    const std::vector<Site> &sites_;
    std::vector<text::TokenId> tokens_;
    int32_t chunk_size_;
    kernels::DevicePtr cpu_;
    CountBar bar_;
    std::map<const gguf::Tensor *, gguf::Type> types_;  // as planned
    quantize::ImportanceSums sums_;
    std::map<const gguf::Tensor *, std::vector<float>> importance_;  // [matrices][columns], without scales
    AwqResult result_;
    double all_work_ = 0, done_work_ = 0, before_ = 0, after_ = 0;
    size_t scaled_ = 0;
    Occurrences not_better_, few_rows_;
};

}  // namespace

AwqResult run_awq(const gguf::File &source, const quantize::QuantizePlan &plan,
                  const quantize::QuantizeRequest &request, const CalibrationText &text, Io &io) {
    decode::StopRequest stop;
    const InterruptScope interrupts(stop);
    return AwqRun(source, plan, request, text, stop, io).run();
}

}  // namespace runnel::commands
