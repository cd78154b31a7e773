#include "engine/commands/quantize/refine.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "engine/commands/figures.h"
#include "engine/commands/quantize/calibration_text.h"
#include "engine/commands/quantize/model_output.h"
#include "engine/quantize/budget_search.h"
#include "engine/quantize/rows.h"
#include "gguf/printable.h"
#include "gguf/read_files.h"

namespace runnel::commands {
namespace {

using measure::ReplacedTensor, measure::Sensitivity;
using quantize::OpenTensor, quantize::TypeChoice, quantize::TypeOption, quantize::TypeTarget;

// Slopes measured around a choice come from small differences: no more than this far from those of the first pass.
constexpr double kMostChange = 8;
// The search for --target-kl ends when the size is known to this many bits per weight.
constexpr double kStepBits = 0.01;

decode::EngineOptions engine_options(const QuantizeOptions &options) {
    decode::EngineOptions result;
    result.model = options.source;
    result.threads = options.threads;
    result.context = options.target.context;
    return result;
}

std::string text_name(const std::string &path) {
    return path == "-" ? "stdin" : path;
}

// Whether b has less divergence than a by more than the standard error of the difference. Chunks are compared one by one:
// some are harder for every choice.
bool is_clearly_less(const Sensitivity::Result &a, const Sensitivity::Result &b) {
    const size_t count = std::min(a.chunks.size(), b.chunks.size());
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; ++i) {
        const double gain = a.chunks[i] - b.chunks[i];
        sum += gain, squares += gain * gain;
    }
    if (count < 2) return b.divergence < a.divergence;
    const double n = static_cast<double>(count), mean = sum / n;
    const double error = std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1));
    return b.divergence < a.divergence && mean > error;
}

// The source's tensors as a choice has them.
class ChosenModel {
  public:
    explicit ChosenModel(const RefineInput &input) : input_(input) {}

    // Encodes the tensors whose types change.
    void set(const TypeChoice &choice) {
        const quantize::QuantizePlan plan =
            quantize::plan_quantization(input_.source, quantize::with_choice(input_.request, choice));
        for (const quantize::PlannedTensor &planned : plan.tensors) {
            const std::string name(planned.source->name);
            const auto [at, added] = index_.try_emplace(name, tensors_.size());
            if (added) tensors_.push_back({name, planned.source->type, {}});
            ReplacedTensor &tensor = tensors_[at->second];
            if (tensor.type != planned.type) tensor = encoded(*planned.source, planned.type);
        }
    }

    Sensitivity::Result divergence(Sensitivity &text) const { return text.divergence(tensors_, input_.stop); }

    // With other types for some tensors.
    double divergence_with(const std::vector<std::pair<const OpenTensor *, const TypeOption *>> &changes,
                           Sensitivity &text) {
        std::vector<ReplacedTensor> others;
        for (const auto &[tensor, option] : changes) others.push_back(encoded(*tensor->source, option->type));
        const auto swap_all = [&] {
            for (ReplacedTensor &other : others) std::swap(other, tensors_[index_.at(other.name)]);
        };
        swap_all();
        const double result = divergence(text).divergence;
        swap_all();
        return result;
    }

  private:
    ReplacedTensor encoded(const gguf::Tensor &tensor, gguf::Type type) const {
        if (input_.stop.requested()) throw Interrupted{};
        const std::string name(tensor.name);
        if (type == tensor.type) return {name, type, {}};
        return {name, type, quantize::encode_tensor(tensor, type, input_.request)};
    }

    const RefineInput &input_;
    std::vector<ReplacedTensor> tensors_;
    std::map<std::string, size_t> index_;
};

class Refinement {
  public:
    Refinement(const RefineInput &input, const std::vector<OpenTensor> &tensors)
        : input_(input), first_(tensors), model_(input) {}

    Refined run() {
        Refined result;
        result.choice = choose(first_);
        Sensitivity::Result measured = judge(result.choice);
        HeldOut &held_out = result.held_out;
        held_out.text = input_.model.held_out_name;
        held_out.tokens = input_.model.held_out->tokens();
        held_out.estimated = quantize::damage_of(first_, result.choice);
        held_out.first = measured.divergence;
        held_out.first_bytes = result.choice.bytes;
        const int rounds = input_.model.choosing ? input_.target.rounds : 0;
        while (held_out.rounds < rounds) {
            std::vector<OpenTensor> tensors = first_;
            measure_around(result.choice, tensors);
            ++held_out.rounds;
            bool is_better = replace_if_better(tensors, result.choice, measured);
            // The slopes hold near the choice only: also try those between them and the first ones.
            for (size_t i = 0; i < tensors.size(); ++i)
                tensors[i].slope = std::sqrt(tensors[i].slope * first_[i].slope);
            is_better |= replace_if_better(tensors, result.choice, measured);
            if (!is_better) break;
            ++held_out.kept;
        }
        held_out.divergence = measured.divergence;
        held_out.error = measured.error;
        held_out.not_measured = measured.unused;
        result.choice.damage = quantize::damage_of(first_, result.choice);
        return result;
    }

  private:
    // The measurement of the whole model on the held-out text.
    const Sensitivity::Result &judge(const TypeChoice &choice) {
        const auto known = judged_.find(choice.assigned);
        if (known != judged_.end()) return known->second;
        model_.set(choice);
        return judged_.emplace(choice.assigned, model_.divergence(*input_.model.held_out)).first->second;
    }

    TypeChoice choose_within(const std::vector<OpenTensor> &tensors, const TypeTarget &target) const {
        return quantize::choose_for_target(input_.source, input_.request, tensors, target);
    }

    TypeChoice choose(const std::vector<OpenTensor> &tensors) {
        const TargetOptions &target = input_.target;
        if (!target.divergence)
            return choose_within(tensors, {target.size, target.bits_per_weight, {}, target.cost});
        const auto within = [&](uint64_t bytes) {
            return choose_within(tensors, {{}, {}, bytes, target.cost});
        };
        const TypeChoice all = choose_within(tensors, {{}, 64.0, {}, target.cost});
        quantize::BudgetRange range{all.smallest, all.most, all.most, 1};
        range.step =
            std::max<uint64_t>(1, static_cast<uint64_t>(kStepBits * static_cast<double>(all.elements) / 8));
        range.start = quantize::smallest_budget(range, *target.divergence, [&](uint64_t bytes) {
                          return within(bytes).damage;
                      }).value_or(all.most);
        constexpr int kExpected = 12;  // sizes that a search usually tries
        CountBar bar("measuring sizes", "sizes", kExpected, input_.io);
        int tried = 0;
        bar.update(0);
        const auto found = quantize::smallest_budget(range, *target.divergence, [&](uint64_t bytes) {
            const double divergence = judge(within(bytes)).divergence;
            bar.update(std::min(++tried, kExpected - 1));
            return divergence;
        });
        if (!found)
            throw quantize::QuantizeError(format(
                "--target-kl %.4g cannot be kept: with the largest types allowed the divergence is %.4g",
                *target.divergence, judge(all).divergence));
        return within(*found);
    }

    // Replaces the slopes by those around the choice: each group one type down and one type up.
    void measure_around(const TypeChoice &choice, std::vector<OpenTensor> &tensors) {
        model_.set(choice);
        Sensitivity &text = *input_.model.choosing;
        const std::vector<quantize::SlopeGroup> groups = quantize::slope_groups(tensors);
        CountBar bar("measuring around the choice", "groups", static_cast<int64_t>(groups.size()), input_.io);
        bar.update(0);
        const double here = model_.divergence(text).divergence;
        for (const quantize::SlopeGroup &group : groups) {
            double divergence[2] = {here, here}, error[2] = {0, 0};  // down, up: change of the error
            for (const int up : {0, 1}) {
                std::vector<std::pair<const OpenTensor *, const TypeOption *>> changes;
                for (const size_t i : group.tensors) {
                    const gguf::Type type = choice.assigned.at(tensors[i].name);
                    const TypeOption *next = up ? quantize::next_larger(tensors[i], type)
                                                : quantize::next_smaller(tensors[i], type);
                    if (!next) continue;
                    changes.emplace_back(&tensors[i], next);
                    error[up] += next->error - tensors[i].find(type)->error;
                }
                if (!changes.empty()) divergence[up] = model_.divergence_with(changes, text);
            }
            bar.update(&group - groups.data() + 1);
            const double rise = error[0] - error[1];
            if (!(rise > 0)) continue;
            const double slope = (divergence[0] - divergence[1]) / rise;
            for (const size_t i : group.tensors)
                tensors[i].slope =
                    std::clamp(slope, first_[i].slope / kMostChange, first_[i].slope * kMostChange);
        }
    }

    bool replace_if_better(const std::vector<OpenTensor> &tensors, TypeChoice &best,
                           Sensitivity::Result &measured) {
        TypeChoice next = choose(tensors);
        const Sensitivity::Result result = judge(next);
        const bool is_better =
            input_.target.divergence ? next.bytes < best.bytes : is_clearly_less(measured, result);
        if (is_better) best = std::move(next), measured = result;
        return is_better;
    }

    const RefineInput &input_;
    const std::vector<OpenTensor> &first_;  // with the slopes of the first pass
    ChosenModel model_;
    std::map<std::map<std::string, gguf::Type, std::less<>>, Sensitivity::Result> judged_;
};

}  // namespace

TextModel::TextModel(const QuantizeOptions &options, const decode::StopRequest &stop, Io &io)
    : engine(engine_options(options)) {
    const TargetOptions &target = options.target;
    const auto context = static_cast<size_t>(target.context);
    const int64_t most_chunks = target.chunks.value_or(kTargetChunks);
    const auto read = [&](const std::string &path) {
        return plain_chunks_of({path, target.context, -1}, engine.tokenizer(), stop, io);
    };
    std::vector<text::TokenId> first, second;
    if (!target.text.empty()) {
        first = read(target.text);
        size_t chunks = first.size() / context;
        if (most_chunks > 0) chunks = std::min(chunks, static_cast<size_t>(most_chunks));
        if (target.held_out.empty()) {
            const size_t all = std::min(first.size() / context, chunks + chunks / 2 + chunks % 2);
            chunks = std::min(chunks, all - all / 3);
            if (all == chunks && all > 1) --chunks;
            second.assign(first.begin() + static_cast<std::ptrdiff_t>(chunks * context),
                          first.begin() + static_cast<std::ptrdiff_t>(all * context));
            held_out_name = "chunks " + std::to_string(chunks + 1) + " to " + std::to_string(all) + " of " +
                            text_name(target.text);
        }
        first.resize(chunks * context);
    }
    if (!target.held_out.empty()) {
        if (target.held_out != "-") gguf::note_read(std::filesystem::path(target.held_out));
        second = read(target.held_out);
        held_out_name = text_name(target.held_out);
        if (most_chunks > 0)
            second.resize(std::min(second.size(), static_cast<size_t>(most_chunks) * context));
    }
    if (target.divergence && second.empty())
        throw InputError(
            gguf::printable(target.text, 1024) +
            " has one chunk only: --target-kl needs another one to judge (--held-out, or a smaller -c)");
    const auto measured = [&](std::vector<text::TokenId> tokens) {
        return tokens.empty()
                   ? nullptr
                   : std::make_unique<Sensitivity>(engine, std::move(tokens), target.context, stop);
    };
    choosing = measured(std::move(first));
    held_out = measured(std::move(second));
}

Refined choose_measured(const RefineInput &input, const std::vector<OpenTensor> &tensors) {
    return Refinement(input, tensors).run();
}

std::string held_out_text(const HeldOut &held_out) {
    std::string text =
        format("KL divergence %.4g +- %.2g, measured on ", held_out.divergence, held_out.error) +
        gguf::printable(held_out.text, 1024) +
        format(" (%lld tokens, not used to measure the sensitivity)",
               static_cast<long long>(held_out.tokens));
    text += format("; first choice %.4g, estimated %.4g", held_out.first, held_out.estimated);
    if (held_out.rounds > 0)
        text += format("; measured around the choice %d time%s, %s", held_out.rounds,
                       held_out.rounds == 1 ? "" : "s", held_out.kept > 0 ? "improved" : "first choice kept");
    if (!held_out.not_measured.empty())
        text += "; without " + gguf::printable(held_out.not_measured.front(), 200) +
                (held_out.not_measured.size() > 1
                     ? " and " + std::to_string(held_out.not_measured.size() - 1) + " more tensors"
                     : "") +
                ", which the measured model does not use";
    return text;
}

nlohmann::ordered_json held_out_json(const HeldOut &held_out) {
    nlohmann::ordered_json json = {{"text", gguf::printable(held_out.text, 4096)},
                                   {"tokens", held_out.tokens},
                                   {"divergence", held_out.divergence},
                                   {"error", held_out.error},
                                   {"first_divergence", held_out.first},
                                   {"first_bytes", held_out.first_bytes},
                                   {"estimated", held_out.estimated},
                                   {"rounds", held_out.rounds},
                                   {"kept", held_out.kept},
                                   {"not_measured", nlohmann::ordered_json::array()}};
    for (const std::string &name : held_out.not_measured)
        json["not_measured"].push_back(gguf::printable(name, 4096));
    return json;
}

}  // namespace runnel::commands
