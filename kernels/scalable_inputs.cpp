#include "kernels/scalable_inputs.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "kernels/steps.h"

namespace runnel::kernels {
namespace {

std::string name_of(const Step &step) {
    return std::visit(Overloaded{[](const Embed &) { return "the token table"; },
                                 [](const HashedEmbed &) { return "a table of n-grams"; },
                                 [](const Norm &) { return "a norm"; },
                                 [](const Linear &) { return "a matrix"; },
                                 [](const HeadLinear &) { return "a matrix per head"; },
                                 [](const Copy &) { return "a copy of slices"; },
                                 [](const Rotate &) { return "a rotation"; },
                                 [](const Mix &) { return "a mix of slices"; },
                                 [](const StreamWeights &) { return "the weights of streams"; },
                                 [](const Lerp &) { return "an interpolation"; },
                                 [](const Rope &) { return "a rotation"; },
                                 [](const Attention &) { return "attention"; },
                                 [](const JoinAttention &) { return "attention"; },
                                 [](const Indexer &) { return "an indexer"; },
                                 [](const Activation &) { return "an activation"; },
                                 [](const Experts &) { return "experts"; },
                                 [](const ShortConv &) { return "a convolution"; },
                                 [](const SoftPool &) { return "pooled tokens"; },
                                 [](const ScanGate &) { return "the gate of a recurrent step"; },
                                 [](const LinearScan &) { return "a recurrent step"; },
                                 [](const SelectiveScan &) { return "a recurrent step"; },
                                 [](const Logits &) { return "the output matrix"; }},
                      step);
}

// The content that one step gives a slot, and the steps that read it.
struct Content {
    size_t writer;
    std::vector<size_t> readers;
};

// How a step's matrices read a slot.
struct MatrixReads {
    bool only = true;  // the step reads the slot in no other way
    std::vector<WeightId> matrices;
};
MatrixReads matrix_reads(const Step &step, Slot slot) {
    MatrixReads reads;
    if (const auto *linear = std::get_if<Linear>(&step); linear && linear->in == slot) {
        for (const Linear::Part &part : linear->parts) {
            reads.matrices.push_back(part.weight);
            reads.only &= part.add != slot;
        }
    } else if (const auto *experts = std::get_if<Experts>(&step); experts && experts->in == slot) {
        reads.matrices = {experts->gate};
        if (experts->up != kNoWeight) reads.matrices.push_back(experts->up);
        reads.only = experts->logits != slot && experts->add != slot;
    } else if (const auto *logits = std::get_if<Logits>(&step); logits && logits->in == slot) {
        reads.matrices = {logits->weight};
    } else {
        reads.only = false;
    }
    return reads;
}

// How the output of an activation depends on one of its inputs.
enum class Dependence { Linear, Squared, Other };
Dependence of_gate_alone(Activation::Kind act) {
    switch (act) {
        case Activation::Kind::Relu:  // the scales are positive
        case Activation::Kind::Identity:
            return Dependence::Linear;
        case Activation::Kind::ReluSquared:
            return Dependence::Squared;
        default:
            return Dependence::Other;
    }
}

class Finder {
  public:
    explicit Finder(const Program &program) : program_(program) {}

    std::vector<ScalableInput> run() {
        for (size_t i = 0; i < program_.steps.size(); ++i) {
            const Step &step = program_.steps[i];
            std::optional<Slot> in;
            visit_slots(
                step,
                [&](Slot slot) {
                    if (!matrix_reads(step, slot).matrices.empty()) in = slot;
                },
                [](Slot) {});
            if (in) add(*in, i);
            if (const auto *heads = std::get_if<HeadLinear>(&step)) {
                ScalableInput input;
                input.readers = {i}, input.matrices = {heads->weight};
                input.obstacle = "it is multiplied head by head";
                found_.push_back(std::move(input));
            }
            if (const auto *experts = std::get_if<Experts>(&step)) add_down(*experts, i);
        }
        return std::move(found_);
    }

  private:
    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }

    // What step `reader` finds in the slot; nothing if no step wrote it.
    std::optional<Content> content_of(Slot slot, size_t reader) const {
        size_t writer = reader;
        do {
            if (writer-- == 0) return {};
        } while (!writes_slot(program_.steps[writer], slot));
        Content content{writer, {}};
        for (size_t i = writer + 1; i < program_.steps.size(); ++i) {
            if (reads_slot(program_.steps[i], slot)) content.readers.push_back(i);
            if (writes_slot(program_.steps[i], slot)) break;
        }
        return content;
    }

    void add(Slot slot, size_t reader) {
        ScalableInput input;
        const std::optional<Content> content = content_of(slot, reader);
        if (content && !seen_.emplace(slot, content->writer).second) return;
        input.channels = program_.slots[static_cast<size_t>(slot)].width;
        input.channel_of.resize(static_cast<size_t>(input.channels));
        std::iota(input.channel_of.begin(), input.channel_of.end(), 0);
        input.obstacle = content ? find_makers(slot, *content, input) : "no step makes it";
        for (const size_t at : content ? content->readers : std::vector{reader}) {
            const MatrixReads reads = matrix_reads(program_.steps[at], slot);
            if (reads.matrices.empty() || !reads.only) {
                if (input.obstacle.empty())
                    input.obstacle =
                        "it is also read by " + (reads.matrices.empty() ? name_of(program_.steps[at])
                                                                        : std::string("a residual sum"));
                if (reads.matrices.empty()) continue;
            }
            input.readers.push_back(at);
            input.matrices.insert(input.matrices.end(), reads.matrices.begin(), reads.matrices.end());
        }
        found_.push_back(std::move(input));
    }

    // Follows the channels to what makes them. Returns an obstacle, or nothing.
    std::string find_makers(Slot slot, Content content, ScalableInput &input) const {
        while (true) {
            const Step &step = program_.steps[content.writer];
            input.maker_step = content.writer;
            if (const auto *norm = std::get_if<Norm>(&step)) return made_by(*norm, input);
            if (const auto *linear = std::get_if<Linear>(&step)) return made_by(*linear, slot, input);
            Slot before = kNoSlot;
            if (const auto *act = std::get_if<Activation>(&step)) {
                if (std::string obstacle = through(*act, input, before); !obstacle.empty()) return obstacle;
            } else if (const auto *attention = std::get_if<Attention>(&step)) {
                if (std::string obstacle = through(*attention, input, before); !obstacle.empty())
                    return obstacle;
            } else {
                return "it is made by " + name_of(step);
            }
            const size_t via = content.writer;
            std::optional<Content> earlier = content_of(before, via);
            if (!earlier) return "no step makes it";
            for (const size_t reader : earlier->readers)
                if (reader != via)
                    return "the values it is made from are also read by " + name_of(program_.steps[reader]);
            slot = before, content = std::move(*earlier);
        }
    }

    static std::string made_by(const Norm &norm, ScalableInput &input) {
        if (norm.add != kNoSlot) return "a norm adds it to the residual sum";
        if (norm.weight == kNoWeight) return "it is made by a norm without a weight";
        if (norm.parts != 1) return "it is made by a norm whose weight the heads share";
        input.makers = {{norm.weight, 0, false}};
        if (norm.bias != kNoWeight) input.makers.push_back({norm.bias, 0, false});
        return {};
    }

    static std::string made_by(const Linear &linear, Slot slot, ScalableInput &input) {
        const Linear::Part *maker = nullptr;
        for (const Linear::Part &part : linear.parts) {
            if (part.out != slot) continue;
            if (maker) return "it is made by several matrices";
            maker = &part;
        }
        if (maker->add != kNoSlot) return "it is part of the residual sum";
        for (const Linear::Part &part : linear.parts)
            if (&part != maker && part.weight == maker->weight)
                return "the matrix that makes it also makes other values";
        input.makers = {{maker->weight, 0, true}};
        if (maker->bias != kNoWeight) input.makers.push_back({maker->bias, 0, false});
        return {};
    }

    static std::string through(const Activation &act, ScalableInput &input, Slot &before) {
        if (act.up != kNoSlot) {
            if (!is_linear_in_up(act.act) || act.gate == act.up)
                return "the activation before it is not linear";
            before = act.up;
            return {};
        }
        const Dependence dependence = of_gate_alone(act.act);
        if (dependence == Dependence::Other || (dependence == Dependence::Squared && input.is_squared))
            return "the activation before it is not linear";
        input.is_squared |= dependence == Dependence::Squared;
        before = act.gate;
        return {};
    }

    // Query heads of one group read the same values.
    std::string through(const Attention &attention, ScalableInput &input, Slot &before) const {
        if (attention.v == kNoSlot) return "attention takes its values from keys";
        if (attention.v == attention.k || attention.v == attention.q)
            return "keys or queries are the same numbers as its values";
        size_t users = 0;
        for_each_step<Attention>(program_,
                                 [&](const Attention &other) { users += other.cache == attention.cache; });
        if (users != 1) return "several layers attend to its values";
        const int32_t size = attention.head_dim_v, group = attention.heads / attention.kv_heads;
        for (int32_t &channel : input.channel_of) channel = channel / size / group * size + channel % size;
        input.channels = int64_t{attention.kv_heads} * size;
        before = attention.v;
        return {};
    }

    // The inputs of the experts' down matrices, which lie inside the step.
    void add_down(const Experts &step, size_t index) {
        const Weight &down = weight(step.down), &gate = weight(step.gate);
        const int64_t hidden = down.cols;
        const bool is_merged = step.up == kNoWeight && gate.rows == 2 * hidden,
                   is_gated = is_merged || step.up != kNoWeight;
        ScalableInput input;
        input.readers = {index}, input.matrices = {step.down};
        input.channels = hidden;
        input.channel_of.resize(static_cast<size_t>(hidden));
        std::iota(input.channel_of.begin(), input.channel_of.end(), 0);
        input.maker_step = index;
        const Dependence alone = of_gate_alone(step.act);
        input.is_squared = !is_gated && alone == Dependence::Squared;
        if (is_gated ? !is_linear_in_up(step.act) : alone == Dependence::Other) {
            input.obstacle = "the activation before it is not linear";
            found_.push_back(std::move(input));
            return;
        }
        const WeightId maker = step.up == kNoWeight ? step.gate : step.up,
                       bias = step.up == kNoWeight ? step.gate_bias : step.up_bias;
        const int64_t rows = weight(maker).rows, first = is_merged ? hidden : 0;
        for (int64_t e = 0; e < down.count; ++e) {
            input.expert = static_cast<int32_t>(e);
            input.makers = {{maker, e * rows + first, true}};
            if (bias != kNoWeight) input.makers.push_back({bias, e * rows + first, false});
            found_.push_back(input);
        }
    }

    const Program &program_;
    std::set<std::pair<Slot, size_t>> seen_;  // slots and the steps that wrote them
    std::vector<ScalableInput> found_;
};

}  // namespace

std::vector<ScalableInput> scalable_inputs(const Program &program) {
    return Finder(program).run();
}

}  // namespace runnel::kernels
