#include "engine/commands/quantize/awq_sites.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "engine/commands/quantize/occurrences.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::commands {
namespace {

using kernels::ScalableInput, kernels::WeightId;

// Consecutive values of a tensor.
struct Part {
    const gguf::Tensor *tensor;
    int64_t first, count;
};

// Relates the weights of a program to the tensors of the file.
class Tensors {
  public:
    Tensors(const gguf::File &file, const kernels::Program &program) : program_(program) {
        for (const gguf::Tensor &tensor : file.tensors()) {
            by_place_[tensor.data] = &tensor;
            is_drafting_ |= tensor.name.find(".nextn.") != tensor.name.npos;
        }
        for (size_t i = 0; i < program.steps.size(); ++i)
            kernels::visit_weights(program.steps[i], [&](WeightId id) {
                // A family may have computed this weight from a tensor that is also in use itself.
                if (const gguf::Tensor *tensor = file.find_tensor(weight(id).name)) users_[tensor].insert(i);
                if (const std::optional<Part> part = part_of(id)) {
                    users_[part->tensor].insert(i);
                    parts_[part->tensor].push_back(*part);
                }
            });
    }

    // The values of a tensor that the weight consists of; nothing for computed weights.
    std::optional<Part> part_of(WeightId id) const {
        const kernels::Weight &w = weight(id);
        auto found = by_place_.upper_bound(w.data);
        if (found == by_place_.begin()) return {};
        const gguf::Tensor &tensor = *(--found)->second;
        const auto offset = static_cast<size_t>(w.data - tensor.data);
        if (offset + w.bytes() > tensor.bytes || w.type != tensor.type) return {};
        const int64_t count = w.rows * w.cols * w.count;
        // Vectors may be parts of a row, or several rows in one.
        if (w.rows == 1 && w.count == 1 && w.type == gguf::Type::F32)
            return Part{&tensor, static_cast<int64_t>(offset / sizeof(float)), count};
        const size_t row = gguf::row_bytes(w.type, w.cols);
        if (w.cols != tensor.shape[0] || offset % row != 0) return {};
        return Part{&tensor, static_cast<int64_t>(offset / row) * w.cols, count};
    }

    const std::set<size_t> &users(const gguf::Tensor *tensor) const { return users_.at(tensor); }
    // Whether several weights contain one of these values.
    bool overlaps(const Part &values) const {
        const auto &all = parts_.at(values.tensor);
        return std::ranges::count_if(all, [&](const Part &part) {
                   return part.first < values.first + values.count && values.first < part.first + part.count;
               }) != 1;
    }
    // Blocks for multi-token prediction read the output matrix and the last norm as well.
    bool is_drafting() const { return is_drafting_; }

  private:
    const kernels::Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }

    const kernels::Program &program_;
    std::map<const std::byte *, const gguf::Tensor *, std::less<>> by_place_;
    std::map<const gguf::Tensor *, std::set<size_t>> users_;   // steps
    std::map<const gguf::Tensor *, std::vector<Part>> parts_;  // that weights consist of
    bool is_drafting_ = false;
};

// Decides for each input of a program whether the file's tensors can be scaled.
class SiteFinder {
  public:
    SiteFinder(const gguf::File &file, const kernels::Program &program, const quantize::QuantizePlan &plan)
        : tensors_(file, program), program_(program) {
        for (const quantize::PlannedTensor &planned : plan.tensors) planned_[planned.source] = planned.type;
    }

    AwqSites run() {
        AwqSites result;
        for (ScalableInput &input : kernels::scalable_inputs(program_)) {
            if (!is_quantized(input)) continue;
            AwqSite site;
            std::string obstacle = find(input, site);
            if (obstacle.empty()) {
                site.input = std::move(input);
                result.scalable.push_back(std::move(site));
            } else {
                auto found = std::ranges::find(result.not_scaled, obstacle, &NotScaled::reason);
                if (found == result.not_scaled.end())
                    found = result.not_scaled.insert(found, {std::move(obstacle), {}});
                found->matrices.push_back(weight(input.matrices.front()).name);
            }
        }
        return result;
    }

  private:
    const kernels::Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }

    bool becomes_quantized(const gguf::Tensor *tensor) const {
        const auto found = planned_.find(tensor);
        return found != planned_.end() && found->second != tensor->type &&
               gguf::traits(found->second).quantized;
    }
    bool is_quantized(const ScalableInput &input) const {
        return std::ranges::any_of(input.matrices, [&](WeightId id) {
            const std::optional<Part> part = tensors_.part_of(id);
            return part && becomes_quantized(part->tensor);
        });
    }
    // Whether scaled values can be written: not for quantized tensors that are copied.
    bool can_change(const gguf::Tensor *tensor) const {
        return planned_.contains(tensor) &&
               (!gguf::traits(tensor->type).quantized || becomes_quantized(tensor));
    }

    std::string find(const ScalableInput &input, AwqSite &site) const {
        if (!input.obstacle.empty()) return input.obstacle;
        std::map<const gguf::Tensor *, int64_t> read;  // values
        for (const WeightId id : input.matrices) {
            const std::optional<Part> part = tensors_.part_of(id);
            if (!part) return "a matrix is computed from several tensors";
            if (part->tensor->name == "output.weight" && tensors_.is_drafting())
                return "blocks for multi-token prediction use the output matrix, too";
            if (!can_change(part->tensor)) return "a matrix that reads it stays quantized as it is";
            for (const size_t step : tensors_.users(part->tensor))
                if (std::ranges::find(input.readers, step) == input.readers.end())
                    return "another step reads one of the matrices, too";
            if (read.emplace(part->tensor, 0).second)
                site.readers.push_back({part->tensor, std::max(0, input.expert), input.expert < 0});
            read[part->tensor] += part->count;
        }
        for (const auto &[tensor, values] : read)
            if (values != tensor->elements() ||
                tensor->shape[0] != static_cast<int64_t>(input.channel_of.size()))
                return "only a part of a matrix reads it";
        for (const kernels::ChannelMaker &maker : input.makers) {
            const std::optional<Part> part = tensors_.part_of(maker.weight);
            if (!part) return "the tensor that makes it is computed from others";
            const std::set<size_t> &users = tensors_.users(part->tensor);
            if (users.size() != 1 || *users.begin() != input.maker_step || tensors_.overlaps(*part))
                return "another step reads the tensor that makes it, too";
            if (!can_change(part->tensor)) return "the tensor that makes it stays quantized as it is";
            const int64_t unit = maker.is_matrix ? part->tensor->shape[0] : 1;
            site.makers.push_back({part->tensor, part->first / unit + maker.first, maker.is_matrix});
        }
        return {};
    }

    Tensors tensors_;
    const kernels::Program &program_;
    std::map<const gguf::Tensor *, gguf::Type> planned_;
};

}  // namespace

AwqSites find_awq_sites(const gguf::File &source, const kernels::Program &program,
                        const quantize::QuantizePlan &plan) {
    return SiteFinder(source, program, plan).run();
}

void fold_scales(const AwqSite &site, std::span<const float> scales, quantize::TensorScalesByName &tensors) {
    for (const AwqSite::Reader &reader : site.readers) {
        quantize::TensorScales &factors = tensors[std::string(reader.tensor->name)];
        for (int64_t c = 0; c < site.columns(); ++c) {
            const auto channel = static_cast<size_t>(site.input.channel_of[static_cast<size_t>(c)]);
            factors.scale_column(*reader.tensor, reader.is_whole ? -1 : reader.matrix, c, scales[channel]);
        }
    }
    for (const AwqSite::Maker &maker : site.makers) {
        quantize::TensorScales &factors = tensors[std::string(maker.tensor->name)];
        for (int64_t i = 0; i < site.input.channels; ++i) {
            const float scale = scales[static_cast<size_t>(i)];
            const float by = 1 / (site.input.is_squared ? std::sqrt(scale) : scale);
            if (maker.is_matrix)
                factors.scale_row(*maker.tensor, maker.first + i, by);
            else
                factors.scale_value(*maker.tensor, maker.first + i, by);
        }
    }
}

std::vector<std::string> awq_notes(const AwqSites &sites) {
    std::vector<std::string> notes;
    for (const NotScaled &kind : sites.not_scaled) {
        Occurrences occurrences{kind.matrices.size(),
                                "of tensor " + gguf::printable(kind.matrices.front(), 200)};
        occurrences.report(notes, "awq", "not scaled, because " + kind.reason, "input", "inputs");
    }
    return notes;
}

nlohmann::ordered_json awq_json(const AwqSites &sites) {
    nlohmann::ordered_json json = {{"scalable", sites.scalable.size()},
                                   {"not_scaled", nlohmann::ordered_json::array()}};
    for (const NotScaled &kind : sites.not_scaled) {
        json["not_scaled"].push_back(
            {{"reason", kind.reason}, {"matrices", nlohmann::ordered_json::array()}});
        for (const std::string &name : kind.matrices)
            json["not_scaled"].back()["matrices"].push_back(gguf::printable(name, 4096));
    }
    return json;
}

}  // namespace runnel::commands
