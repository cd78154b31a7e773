#include "kernels/head_slots.h"

#include <cstddef>

#include "kernels/steps.h"

namespace runnel::kernels {
namespace {

class HeadFinder {
  public:
    HeadFinder(const Program &program, std::span<const double> shares, std::span<const int32_t> cache_shares)
        : program_(program),
          shares_(shares),
          cache_shares_(cache_shares),
          found_(program.slots.size()),
          conflict_(program.slots.size()) {}

    std::vector<std::optional<HeadSlot>> find() {
        for_each_step<Attention>(program_, [&](const Attention &a) {
            if (is_divided(program_, static_cast<size_t>(a.cache), cache_shares_)) return;
            const HeadCut cut = cut_heads(a.heads, a.kv_heads, shares_);
            set(a.q, {a.heads, cut.heads});
            set(a.out, {a.heads, cut.heads});
            set(a.sums, {a.heads, cut.heads});
            set(a.k, {a.kv_heads, cut.kv_heads});
            set(a.v, {a.kv_heads, cut.kv_heads});
        });
        do {
            changed_ = false;
            for (const Step &step : program_.steps) connect(step);
        } while (changed_);
        for (size_t i = 0; i < found_.size(); ++i)
            if (conflict_[i]) found_[i].reset();
        return std::move(found_);
    }

  private:
    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }

    void set(Slot slot, const HeadSlot &heads) {
        if (slot == kNoSlot || width(slot) % heads.units != 0) return;
        std::optional<HeadSlot> &known = found_[static_cast<size_t>(slot)];
        if (!known) known = heads, changed_ = true;
        if (*known != heads) conflict_[static_cast<size_t>(slot)] = true;
    }

    // Two slots whose heads belong together. units: how many there must be; 0: any number.
    void connect(Slot a, Slot b, int64_t units) {
        if (a == kNoSlot || b == kNoSlot) return;
        for (const auto &[from, to] : {std::pair(a, b), std::pair(b, a)}) {
            const std::optional<HeadSlot> known = found_[static_cast<size_t>(from)];
            if (known && (units == 0 || known->units == units)) set(to, *known);
        }
    }

    void connect_slices(Slot in, const StridedSlices &from, int64_t in_slice, Slot out,
                        const StridedSlices &to, int64_t out_slice, int64_t count) {
        if (one_slice_per_head(width(in), from, count, in_slice) &&
            one_slice_per_head(width(out), to, count, out_slice))
            connect(in, out, count);
    }

    void connect(const Step &step) {
        std::visit(Overloaded{
                       [&](const Norm &s) {
                           if (s.parts > 1) connect(s.in, s.out, s.parts);
                       },
                       [&](const HeadLinear &s) {
                           const Weight &w = program_.weights[static_cast<size_t>(s.weight)];
                           connect_slices(s.in, s.from, w.cols, s.out, s.to, w.rows, w.count);
                       },
                       [&](const Copy &s) {
                           if (s.count == 1 && s.width == width(s.in) && s.width == width(s.out))
                               connect(s.in, s.out, 0);
                           else
                               connect_slices(s.in, s.from, s.width, s.out, s.to, s.width, s.count);
                       },
                       [&](const Activation &s) {
                           if (width(s.gate) == width(s.out)) connect(s.gate, s.out, 0);
                           if (s.up != kNoSlot && width(s.up) == width(s.out)) connect(s.up, s.out, 0);
                       },
                       [](const auto &) {},
                   },
                   step);
    }

    const Program &program_;
    std::span<const double> shares_;
    std::span<const int32_t> cache_shares_;
    std::vector<std::optional<HeadSlot>> found_;
    std::vector<bool> conflict_;
    bool changed_ = false;
};

}  // namespace

bool one_slice_per_head(int64_t slot_width, const StridedSlices &slices, int64_t count, int64_t slice_width) {
    return slices.stride > 0 && slot_width == count * slices.stride &&
           slices.first + slice_width <= slices.stride;
}

bool is_divided(const Program &program, size_t cache_layer, std::span<const int32_t> cache_shares) {
    return !cache_shares.empty() &&
           cache_shares[static_cast<size_t>(program.cache_layers[cache_layer].group)] > 1;
}

std::vector<std::optional<HeadSlot>> head_slots(const Program &program, std::span<const double> shares,
                                                std::span<const int32_t> cache_shares) {
    return HeadFinder(program, shares, cache_shares).find();
}

}  // namespace runnel::kernels
