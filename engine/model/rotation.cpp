#include "engine/model/rotation.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "engine/model/metadata.h"
#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

using namespace kernels;

constexpr std::string_view kPrism = "prism.", kHadamard = "prism.hadamard.";
constexpr int64_t kMaxBlock = 1 << 20;

// The keys prism.hadamard.* of a file.
class Rotation {
  public:
    explicit Rotation(const gguf::File &file) : file_(&file) {
        refuse_unknown_keys();
        expect_text("transform", "normalized-sylvester-walsh-hadamard");
        expect_text("axis", "input-last-dimension");
        if (integer("version") != 1) fail("version", "is not 1, the only version that is supported");
        block = integer("block_size");
        if (block < 2 || block > kMaxBlock || !std::has_single_bit(static_cast<uint64_t>(block)))
            fail("block_size", "is not a power of two from 2 to " + std::to_string(kMaxBlock));
        if (const gguf::Value *value = find("gdn_v_grouped")) {
            if (!value->as_bool()) fail("gdn_v_grouped", "is not a bool");
            grouped = *value->as_bool();
        }
        read_signs();
        read_names("weight_names", matrices);
        read_names("inverse_weight_names", tables);
    }

    [[noreturn]] void fail(std::string_view key, const std::string &problem) const {
        throw ModelError(name_of(*file_) + ": " + std::string(kHadamard) + gguf::printable(key) + ": " +
                         problem);
    }
    // The signs of an input; null: all are positive.
    const std::vector<float> *signs_of(int64_t width) const {
        if (identity_) return nullptr;
        const auto known = signs_.find(width);
        if (known == signs_.end())
            fail("sign_widths",
                 "an input of " + std::to_string(width) + " numbers is rotated, but has no signs");
        return &known->second;
    }

    int64_t block = 0;
    bool grouped = false;
    std::unordered_map<std::string_view, bool> matrices, tables;  // names of tensors; whether a step uses it

  private:
    const gguf::Value *find(std::string_view key) const {
        return file_->find(std::string(kHadamard) + std::string(key));
    }
    const gguf::Value &required(std::string_view key) const {
        const gguf::Value *value = find(key);
        if (value == nullptr) fail(key, "missing");
        return *value;
    }
    int64_t integer(std::string_view key) const {
        const auto number = required(key).as_int();
        if (!number) fail(key, "is not an integer");
        return *number;
    }
    void expect_text(std::string_view key, std::string_view expected) const {
        const auto text = required(key).as_string();
        if (!text || *text != expected)
            fail(key, "is not \"" + std::string(expected) + "\", the only one that is supported");
    }
    void refuse_unknown_keys() const;
    void read_signs();
    void read_names(std::string_view key, std::unordered_map<std::string_view, bool> &names);

    const gguf::File *file_;
    bool identity_ = false;
    std::map<int64_t, std::vector<float>> signs_;  // by width
};

void Rotation::refuse_unknown_keys() const {
    constexpr std::string_view kKnown[] = {
        "version",     "transform",   "axis",         "block_size",           "sign_mode",
        "sign_widths", "sign_values", "weight_names", "inverse_weight_names", "gdn_v_grouped"};
    for (const auto &[key, value] : file_->metadata()) {
        if (!key.starts_with(kPrism)) continue;
        const bool known = key.starts_with(kHadamard) &&
                           std::ranges::find(kKnown, key.substr(kHadamard.size())) != std::end(kKnown);
        if (!known)
            throw ModelError(name_of(*file_) + ": " + gguf::printable(key) +
                             ": unknown; it may change what the weights mean");
    }
}

void Rotation::read_signs() {
    const auto mode = required("sign_mode").as_string();
    identity_ = mode == "identity";
    if (!identity_ && mode != "explicit") fail("sign_mode", "is neither \"identity\" nor \"explicit\"");
    if (identity_) {
        for (const std::string_view key : {"sign_widths", "sign_values"})
            if (const gguf::Value *value = find(key); value != nullptr && value->size() > 0)
                fail(key, "there are signs, but sign_mode is \"identity\"");
        return;
    }
    const std::vector<int64_t> widths = required("sign_widths").as_ints();
    const std::vector<float> values = required("sign_values").as_floats();
    if (widths.empty()) fail("sign_widths", "is not a list of numbers");
    if (!std::ranges::all_of(values, [](float sign) { return sign == 1 || sign == -1; }))
        fail("sign_values", "holds a number that is neither 1 nor -1");
    size_t at = 0;
    for (const int64_t width : widths) {
        if (width < 1 || static_cast<uint64_t>(width) > values.size() - at)
            fail("sign_values",
                 "has " + std::to_string(values.size()) + " signs, which sign_widths does not divide");
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(at);
        if (!signs_.try_emplace(width, first, first + width).second)
            fail("sign_widths", "holds " + std::to_string(width) + " twice");
        at += static_cast<size_t>(width);
    }
    if (at != values.size())
        fail("sign_values",
             "has " + std::to_string(values.size()) + " signs, " + std::to_string(at) + " are expected");
}

void Rotation::read_names(std::string_view key, std::unordered_map<std::string_view, bool> &names) {
    const gguf::Value *value = find(key);
    if (value == nullptr) return;
    if (value->type() != gguf::ValueType::Array || value->element_type() != gguf::ValueType::String)
        fail(key, "is not a list of names");
    value->for_each_string([&](uint64_t, std::string_view name) {
        if (file_->find_tensor(name) == nullptr)
            fail(key, "there is no tensor \"" + gguf::printable(name) + "\"");
        names.emplace(name, false);
    });
}

// The number of the layer that a tensor belongs to; -1 if it belongs to none.
int64_t layer_of_name(std::string_view name) {
    int64_t layer = -1;
    if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
    return layer;
}

// Rewrites the steps of a program.
class Rewriter {
  public:
    Rewriter(Rotation &rotation, Builder &builder) : r_(rotation), b_(builder), program_(builder.program()) {}

    void run() {
        const std::vector<Step> steps = std::exchange(program_.steps, {});
        for (const Step &step : steps) {
            layer_ = layer_of(step);
            std::visit([&](const auto &s) { add(s); }, step);
        }
        check_all_used("weight_names", r_.matrices);
        check_all_used("inverse_weight_names", r_.tables);
    }

  private:
    template <class S>
    void add(const S &step) {
        keep(step);
    }
    void add(const Embed &step);
    void add(const Linear &step);
    void add(const Logits &step);

    void append(Step step) {
        set_layer(step, layer_);
        program_.steps.push_back(std::move(step));
    }
    // Appends a step whose weights are not rotated.
    void keep(Step step) {
        visit_weights(step, [&](WeightId id) {
            const std::string_view name = name_of_weight(id);
            if (r_.matrices.contains(name)) fail_use("weight_names", name);
            if (r_.tables.contains(name)) fail_use("inverse_weight_names", name);
        });
        append(std::move(step));
    }
    [[noreturn]] void fail_use(std::string_view key, std::string_view name) const {
        r_.fail(key, gguf::printable(name) + " is used in a way that is not supported for rotated weights");
    }
    std::string_view name_of_weight(WeightId id) const {
        return program_.weights[static_cast<size_t>(id)].name;
    }
    bool takes(std::unordered_map<std::string_view, bool> &names, WeightId id) const {
        const auto known = names.find(name_of_weight(id));
        if (known == names.end()) return false;
        return known->second = true;
    }
    Slot rotated(Slot in, WeightId matrix);
    Slot by_key_head(Slot in);
    WeightId signs(int64_t width);
    void rotate(Slot in, Slot out, int64_t width, bool inverse) {
        append(Rotate{in, out, static_cast<int32_t>(r_.block), signs(width), inverse});
    }
    void check_all_used(std::string_view key, const std::unordered_map<std::string_view, bool> &names) const;

    Rotation &r_;
    Builder &b_;
    Program &program_;
    int32_t layer_ = -1;
    std::map<int64_t, WeightId> signs_;  // by width
};

void Rewriter::add(const Embed &step) {
    if (step.table == kNoWeight || !takes(r_.tables, step.table)) return keep(step);
    if (step.positions != kNoWeight)
        r_.fail("inverse_weight_names", "a rotated table beside learned positions is not supported");
    const int64_t width = program_.slots[static_cast<size_t>(step.out)].width;
    Embed rows = step;
    rows.out = b_.slot("rotated row", width);
    append(rows);
    rotate(rows.out, step.out, width, true);
}

void Rewriter::add(const Linear &step) {
    Linear plain = step, turned = step;
    plain.parts.clear(), turned.parts.clear();
    for (const Linear::Part &part : step.parts)
        (takes(r_.matrices, part.weight) ? turned : plain).parts.push_back(part);
    if (!plain.parts.empty()) keep(plain);
    if (turned.parts.empty()) return;
    turned.in = rotated(step.in, turned.parts.front().weight);
    append(turned);
}

void Rewriter::add(const Logits &step) {
    if (!takes(r_.matrices, step.weight)) return keep(step);
    Logits turned = step;
    turned.in = rotated(step.in, step.weight);
    append(turned);
}

// H (s x) of the input of a matrix.
Slot Rewriter::rotated(Slot in, WeightId matrix) {
    const int64_t width = program_.weights[static_cast<size_t>(matrix)].cols;
    if (r_.grouped && name_of_weight(matrix).ends_with(".ssm_out.weight")) in = by_key_head(in);
    const Slot out = b_.slot("rotated", width);
    rotate(in, out, width, false);
    return out;
}

// From heads [value heads of a key head][key heads] to [key heads][value heads of a key head].
Slot Rewriter::by_key_head(Slot in) {
    const Metadata &m = b_.metadata();
    if (m.architecture() != "qwen35" && m.architecture() != "qwen35moe")
        r_.fail("gdn_v_grouped", "is supported for qwen35 and qwen35moe only");
    const int64_t width = program_.slots[static_cast<size_t>(in)].width;
    const int64_t heads = m.required_integer("ssm.time_step_rank", 1, width),
                  groups = m.required_integer("ssm.group_count", 1, heads);  // both checked by the family
    const int64_t repeats = heads / groups, size = width / heads;
    const Slot out = b_.slot("heads by key head", width);
    for (int64_t i = 0; i < repeats; ++i)
        append(Copy{in,
                    out,
                    {i * groups * size, size},
                    {i * size, repeats * size},
                    static_cast<int32_t>(groups),
                    size});
    return out;
}

// The signs of an input.
WeightId Rewriter::signs(int64_t width) {
    const auto [known, added] = signs_.try_emplace(width, kNoWeight);
    if (!added) return known->second;
    if (width % r_.block != 0)
        r_.fail("block_size",
                std::to_string(r_.block) + " does not divide an input of " + std::to_string(width));
    if (const std::vector<float> *values = r_.signs_of(width))
        known->second = b_.constant("signs of " + std::to_string(width), *values, 1, 1, width);
    return known->second;
}

// Every listed tensor is used, except by the model those of a draft block, and by a draft block the others.
void Rewriter::check_all_used(std::string_view key,
                              const std::unordered_map<std::string_view, bool> &names) const {
    for (const auto &[name, used] : names)
        if (!used && !b_.draft_block() && layer_of_name(name) < b_.hyper().block_count) fail_use(key, name);
}

}  // namespace

void apply_rotation(const gguf::File &file, Builder &builder) {
    const bool any =
        std::ranges::any_of(file.metadata(), [](const auto &pair) { return pair.first.starts_with(kPrism); });
    if (!any) return;
    Rotation rotation(file);
    Rewriter(rotation, builder).run();
}

}  // namespace runnel::model
