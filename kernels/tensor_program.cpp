#include "kernels/tensor_program.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <optional>
#include <utility>

#include "kernels/column_cut.h"
#include "kernels/expert_halves.h"
#include "kernels/head_slots.h"
#include "kernels/partition.h"
#include "kernels/steps.h"
#include "kernels/weight_slices.h"

namespace runnel::kernels {
namespace {

constexpr int64_t kUnitRows = 16;  // the height of a weight tile

// Slots for the sums of ranges of columns, by their width; none: no matrix is cut by columns.
using SumSlots = std::map<int64_t, Slot>;

// The ranges between which the step's only matrix can be cut; 1: it cannot. (A bias or a factor would have to be applied between
// the sum and what is added to it.)
int64_t column_ranges_of(const Program &program, const Linear &step) {
    const Linear::Part &part = step.parts.front();
    const Weight &w = program.weights[static_cast<size_t>(part.weight)];
    const bool plain = step.parts.size() == 1 && part.bias == kNoWeight && part.scale == 1 &&
                       w.rows == program.slots[static_cast<size_t>(part.out)].width;
    return plain ? ranges_to_cut(w) : 1;
}

SumSlots add_sum_slots(Program &program) {
    SumSlots slots;
    for_each_step<Linear>(program, [&](const Linear &step) {
        const int64_t ranges = column_ranges_of(program, step);
        if (ranges == 1) return;
        const int64_t values = ranges * program.slots[static_cast<size_t>(step.parts.front().out)].width;
        const auto [slot, is_new] = slots.try_emplace(values, static_cast<Slot>(program.slots.size()));
        if (is_new) program.slots.push_back({"sums of columns", values});
    });
    return slots;
}

class Cutter {
  public:
    Cutter(const Program &program, std::span<const double> shares, std::span<const int32_t> cache_shares,
           SumSlots sums)
        : program_(program),
          shares_(shares),
          cache_shares_(cache_shares),
          ranks_(shares.size()),
          heads_(head_slots(program, shares, cache_shares)),
          always_whole_(program.slots.size()),
          slices_of_(program.slots.size(), 1),
          units_(program.slots.size(), kUnitRows),
          states_(program.slots.size()),
          pending_(ranks_),
          sums_(std::move(sums)) {
        out_.programs.assign(ranks_, program);
        for (Program &rank : out_.programs) {
            rank.steps.clear();
            rank.parts.clear();
            slices_.emplace_back(rank.weights);
        }
        for_each_step<Experts>(program, [&](const Experts &s) {
            always_whole_[static_cast<size_t>(s.logits)] = true;
            if (s.down == kNoWeight) slices_of_[static_cast<size_t>(s.out)] = s.routing.used;
        });
        cut_cache_layers();
        choose_hidden_units();
    }

    TensorProgram cut() {
        size_t i = 0;
        out_.outer_parts = program_.whole_parts();
        for (const Program::Part &part : out_.outer_parts) {
            begin_outer_part(part.in);
            for (; i < part.end; ++i) {
                layer_ = layer_of(program_.steps[i]);
                std::visit([&](const auto &step) { add(step); }, program_.steps[i]);
            }
            end_outer_part(part.out);
        }
        finish();
        return std::move(out_);
    }

  private:
    struct State {
        bool whole = true;       // the slot itself is current on every rank
        std::optional<Cut> cut;  // its narrow slots are current, and cut like this
        bool written = false;
        size_t stage = 0;  // that wrote it last
    };
    using Slots = std::vector<Slot>;

    State &state(Slot slot) { return states_[static_cast<size_t>(slot)]; }
    int64_t width(Slot slot) const { return program_.slots[static_cast<size_t>(slot)].width; }
    const Weight &weight(WeightId id) const { return program_.weights[static_cast<size_t>(id)]; }
    size_t stage() const { return out_.stages.size() - 1; }

    void cut_cache_layers() {
        std::vector<int32_t> heads(program_.cache_layers.size(), 0);  // 0: no step uses the layer
        for_each_step<Attention>(program_,
                                 [&](const Attention &a) { heads[static_cast<size_t>(a.cache)] = a.heads; });
        for (size_t layer = 0; layer < heads.size(); ++layer) {
            const int32_t kv_heads = program_.cache_layers[layer].kv_heads;
            Cut cut(ranks_);
            const bool divided = is_divided(program_, layer, cache_shares_);
            if (divided)
                cut.assign(ranks_, {0, kv_heads});
            else if (heads[layer] > 0 && kv_heads > 0)
                cut = cut_heads(heads[layer], kv_heads, shares_).kv_heads;
            for (size_t r = 0; r < ranks_; ++r) {
                out_.programs[r].cache_layers[layer].kv_heads = static_cast<int32_t>(cut[r].size());
                out_.programs[r].cache_layers[layer].divided = divided;
            }
            out_.kv_heads.push_back(std::move(cut));
        }
        // Indexers are computed on every rank.
        for_each_step<Indexer>(program_, [&](const Indexer &step) {
            const auto layer = static_cast<size_t>(step.cache);
            for (Program &rank : out_.programs) rank.cache_layers[layer].kv_heads = 1;
            out_.kv_heads[layer] = Cut(ranks_, {0, 1});
        });
    }

    // The ranges between which the step's matrix may be cut by columns: as many as ranks at least; else 1.
    int64_t ranges_of(const Linear &step) const {
        const int64_t ranges = sums_.empty() ? 1 : column_ranges_of(program_, step);
        return std::ranges::count_if(shares_, [](double share) { return share > 0; }) <= ranges ? ranges : 1;
    }
    // Lets hidden values be cut between the ranges of the matrices that read them.
    void choose_hidden_units() {
        for_each_step<Linear>(program_, [&](const Linear &s) {
            if (const int64_t ranges = ranges_of(s); ranges > 1)
                units_[static_cast<size_t>(s.in)] = width(s.in) / ranges;
        });
        for_each_step<Activation>(program_, [&](const Activation &s) {
            for (const Slot slot : {s.gate, s.up})
                if (slot != kNoSlot && width(slot) == width(s.out))
                    units_[static_cast<size_t>(slot)] = units_[static_cast<size_t>(s.out)];
        });
    }

    // --- stages --------------------------------------------------------------------------------------------

    void begin_stage() { out_.stages.push_back({{}, std::vector<int32_t>(ranks_, -1)}); }

    void emit(size_t rank, Step step) {
        Program &program = out_.programs[rank];
        int32_t &part = out_.stages.back().parts[rank];
        if (part < 0) {
            part = static_cast<int32_t>(program.parts.size());
            program.parts.push_back({0, std::exchange(pending_[rank], {}), {}});
        }
        program.steps.push_back(std::move(step));
        program.parts.back().end = program.steps.size();
    }
    void emit_everywhere(const Step &step) {
        for (size_t r = 0; r < ranks_; ++r) emit(r, step);
    }

    // The rank's last part that runs before the gathers of the current stage.
    Program::Part &part_before(size_t rank) {
        std::vector<Program::Part> &parts = out_.programs[rank].parts;
        return parts[parts.size() - (out_.stages.back().parts[rank] >= 0 ? 2 : 1)];
    }

    // Adds the gather to those before the current stage.
    void gather(Gather gather) {
        for (size_t r = 0; r < ranks_; ++r) {
            const int32_t part = out_.stages.back().parts[r];
            insert_once(part >= 0 ? out_.programs[r].parts.back().in : pending_[r], gather.to);
        }
        out_.stages.back().gathers.push_back(std::move(gather));
    }

    // --- slots ---------------------------------------------------------------------------------------------

    // The slot that holds a rank's range of this slot; the same number on all ranks.
    Slot narrow(Slot slot, const Cut &cut) {
        if (all_or_none(cut, width(slot))) return slot;
        const auto [known, is_new] =
            narrow_.try_emplace({slot, cut}, static_cast<Slot>(out_.programs.front().slots.size()));
        if (is_new)
            for (size_t r = 0; r < ranks_; ++r) {
                const std::string &name = program_.slots[static_cast<size_t>(slot)].name;
                out_.programs[r].slots.push_back({name, cut[r].size()});
            }
        return known->second;
    }

    // Makes the slot current on every rank.
    void need_whole(Slot slot) {
        if (slot == kNoSlot || state(slot).whole) return;
        State &s = state(slot);
        if (s.stage == stage()) begin_stage();
        Gather all{
            narrow(slot, *s.cut), slot, without_copies(*s.cut), {}, slices_of_[static_cast<size_t>(slot)]};
        for (size_t r = 0; r < ranks_; ++r) {
            const Range piece = all.pieces[r];
            all.first.push_back(all.from == slot ? piece.begin : piece.begin - (*s.cut)[r].begin);
            if (piece.size() > 0) insert_once(part_before(r).out, all.from);
        }
        gather(std::move(all));
        s.whole = true;
    }

    // Returns the slot with the rank's range, current.
    Slot need_cut(Slot slot, const Cut &cut) {
        if (slot == kNoSlot) return kNoSlot;
        State &s = state(slot);
        const Slot id = narrow(slot, cut);
        if (s.cut == cut || !s.written) return id;
        need_whole(slot);
        if (id == slot) return slot;
        for (size_t r = 0; r < ranks_; ++r)
            if (cut[r].size() > 0)
                emit(r, Copy{slot, id, {cut[r].begin, 0}, {0, 0}, 1, cut[r].size(), layer_});
        s.cut = cut;
        return id;
    }

    void wrote_whole(Slot slot) {
        if (slot != kNoSlot) state(slot) = {true, std::nullopt, true, stage()};
    }
    void wrote_cut(Slot slot, const Cut &cut) {
        const bool whole =
            std::ranges::all_of(cut, [&](const Range &range) { return range.size() == width(slot); });
        state(slot) = {whole, cut, true, stage()};
    }

    // How a matrix product writes the slot; nullopt: every rank computes all of it.
    std::optional<Cut> cut_of(Slot slot) const {
        const int64_t values = width(slot);
        const auto &heads = heads_[static_cast<size_t>(slot)];
        if (heads) return scaled(heads->ranges, values / heads->units);
        if (always_whole_[static_cast<size_t>(slot)] || values < kUnitRows * static_cast<int64_t>(ranks_))
            return std::nullopt;
        return cut_rows(values, units_[static_cast<size_t>(slot)], shares_);
    }

    // --- steps ---------------------------------------------------------------------------------------------

    // On every rank, with whole slots.
    void add_whole(const Step &step) {
        Slots written;
        visit_slots(
            step, [&](Slot slot) { need_whole(slot); }, [&](Slot slot) { written.push_back(slot); });
        emit_everywhere(step);
        for (const Slot slot : written) wrote_whole(slot);
    }
    template <class S>
    void add(const S &step) {
        add_whole(step);
    }

    void add(const Embed &step) {
        Cut first(ranks_, {width(step.out), width(step.out)});
        first.front().begin = 0;
        emit(0, step);
        wrote_cut(step.out, first);
    }

    // How a slot is cut that no rank has whole, if that is between slices of this size.
    std::optional<Cut> cut_between(Slot slot, int64_t size) {
        const State &s = state(slot);
        const auto between = [&](const Range &range) {
            return range.begin % size == 0 && range.end % size == 0;
        };
        return s.whole || !std::ranges::all_of(*s.cut, between) ? std::nullopt : s.cut;
    }

    void add(const Norm &step) {
        const int64_t part = width(step.in) / step.parts;
        const std::optional<Cut> in = step.parts == 1 ? std::nullopt : cut_between(step.in, part);
        if (!in) return add_whole(step);
        const Cut cut = *in;
        Norm own = step;
        own.in = need_cut(step.in, cut);
        own.add = need_cut(step.add, cut);
        own.out = narrow(step.out, cut);
        for (size_t r = 0; r < ranks_; ++r) {
            if (cut[r].size() == 0) continue;
            const auto of = [&](WeightId id) {
                return id != kNoWeight && weight(id).cols == width(step.in) ? slices_[r].values(id, cut[r])
                                                                            : id;
            };
            own.parts = static_cast<int32_t>(cut[r].size() / part);
            own.weight = of(step.weight);
            own.bias = of(step.bias);
            emit(r, own);
        }
        wrote_cut(step.out, cut);
    }

    void add(const Linear &step) {
        if (add_columns(step)) return;
        need_whole(step.in);
        std::vector<std::optional<Cut>> cuts;
        std::vector<Linear::Part> parts = step.parts;  // with the slots of the ranks
        for (Linear::Part &part : parts) {
            cuts.push_back(weight(part.weight).rows == width(part.out) ? cut_of(part.out) : std::nullopt);
            if (cuts.back()) {
                part.add = need_cut(part.add, *cuts.back());
                part.out = narrow(part.out, *cuts.back());
            } else {
                need_whole(part.add);
            }
        }
        for (size_t r = 0; r < ranks_; ++r) {
            Linear own{step.in, {}, step.layer};
            for (size_t i = 0; i < parts.size(); ++i) {
                Linear::Part part = parts[i];
                if (cuts[i]) {
                    const Range range = (*cuts[i])[r];
                    if (range.size() == 0) continue;
                    part.weight = slices_[r].rows(part.weight, range);
                    part.bias = slices_[r].values(part.bias, range);
                }
                own.parts.push_back(part);
            }
            if (!own.parts.empty()) emit(r, std::move(own));
        }
        for (size_t i = 0; i < parts.size(); ++i)
            cuts[i] ? wrote_cut(step.parts[i].out, *cuts[i]) : wrote_whole(step.parts[i].out);
    }

    // Cuts the step's matrix by columns, if no rank has the whole input and it is cut between ranges. Returns whether.
    bool add_columns(const Linear &step) {
        const int64_t ranges = ranges_of(step), cols = width(step.in) / ranges;
        const std::optional<Cut> in = ranges > 1 ? cut_between(step.in, cols) : std::nullopt;
        if (!in || without_copies(*in) != *in) return false;
        const Linear::Part &part = step.parts.front();
        const int64_t rows = width(part.out);
        const Slot sums = sums_.at(ranges * rows);
        Cut parts = *in;
        for (Range &range : parts) range = {range.begin / cols, range.end / cols};
        const Cut out = scaled(parts, rows);
        HeadLinear own{need_cut(step.in, *in), narrow(sums, out), {0, cols}, {0, rows}, kNoWeight};
        own.one_range = true;
        own.layer = step.layer;
        for (size_t r = 0; r < ranks_; ++r) {
            if (parts[r].size() == 0) continue;
            own.weight = slices_[r].columns(part.weight, parts[r], ranges);
            emit(r, own);
        }
        wrote_cut(sums, out);
        need_whole(sums);
        need_whole(part.add);
        Mix add{{sums}, {part.out}, rows};
        if (part.add != kNoSlot) add.in.push_back(part.add);
        add.layer = step.layer;
        emit_everywhere(add);
        wrote_whole(part.out);
        ++out_.by_columns;
        return true;
    }

    // Where the ranks find their slices of a step of `count` slices, of which `units` says which a rank computes.
    struct Place {
        Slot slot;
        std::vector<StridedSlices> slices;  // by rank
    };
    Place read_slices(Slot slot, const StridedSlices &slices, const Cut &units, int64_t count,
                      int64_t slice) {
        const Cut cut = scaled(units, slices.stride);
        const bool narrow_ones =
            one_slice_per_head(width(slot), slices, count, slice) && state(slot).cut == cut;
        Place place{narrow_ones ? narrow(slot, cut) : slot, {}};
        if (!narrow_ones) need_whole(slot);
        for (const Range &range : units) {
            const bool offset = place.slot == slot;
            place.slices.push_back(
                {slices.first + (offset ? range.begin * slices.stride : 0), slices.stride});
        }
        return place;
    }
    // The heads that the ranks write, if the slot is cut between heads.
    std::optional<Cut> heads_written(Slot out, const StridedSlices &to, int64_t count, int64_t slice) const {
        const auto &heads = heads_[static_cast<size_t>(out)];
        if (!heads || heads->units != count || !one_slice_per_head(width(out), to, count, slice))
            return std::nullopt;
        return heads->ranges;
    }
    // The slot to write slices to. The values between them are kept.
    Slot written_slices(Slot out, const StridedSlices &to, const Cut &units, int64_t slice) {
        const Cut cut = scaled(units, to.stride);
        return slice == to.stride ? narrow(out, cut) : need_cut(out, cut);
    }

    void add(const HeadLinear &step) {
        const Weight &w = weight(step.weight);
        const auto heads = heads_written(step.out, step.to, w.count, w.rows);
        if (!heads || all_or_none(*heads, w.count)) return add_whole(step);
        const Place in = read_slices(step.in, step.from, *heads, w.count, w.cols);
        HeadLinear own = step;
        own.in = in.slot;
        own.out = written_slices(step.out, step.to, *heads, w.rows);
        for (size_t r = 0; r < ranks_; ++r) {
            if ((*heads)[r].size() == 0) continue;
            own.from = in.slices[r];
            own.weight = slices_[r].matrices(step.weight, (*heads)[r]);
            emit(r, own);
        }
        wrote_cut(step.out, scaled(*heads, step.to.stride));
    }

    void add(const Copy &step) {
        if (step.count == 1 && step.width == width(step.in) && step.width == width(step.out))
            return add_whole_copy(step);
        const auto heads = heads_written(step.out, step.to, step.count, step.width);
        if (!heads || all_or_none(*heads, step.count)) return add_whole(step);
        const Place in = read_slices(step.in, step.from, *heads, step.count, step.width);
        Copy own = step;
        own.in = in.slot;
        own.out = written_slices(step.out, step.to, *heads, step.width);
        for (size_t r = 0; r < ranks_; ++r) {
            if ((*heads)[r].size() == 0) continue;
            own.from = in.slices[r];
            own.count = static_cast<int32_t>((*heads)[r].size());
            emit(r, own);
        }
        wrote_cut(step.out, scaled(*heads, step.to.stride));
    }

    // A copy of a whole row.
    void add_whole_copy(const Copy &step) {
        if (state(step.in).whole) return add_whole(step);
        const Cut cut = *state(step.in).cut;
        const Slot in = narrow(step.in, cut), out = narrow(step.out, cut);
        for (size_t r = 0; r < ranks_; ++r)
            if (cut[r].size() > 0) emit(r, Copy{in, out, {}, {}, 1, cut[r].size(), step.layer});
        wrote_cut(step.out, cut);
    }

    void add(const Rope &step) {
        const std::optional<Cut> cut = cut_between(step.slot, step.head_dim);
        if (!cut) return add_whole(step);
        Rope own = step;
        own.slot = need_cut(step.slot, *cut);
        for (size_t r = 0; r < ranks_; ++r)
            if ((*cut)[r].size() > 0) emit(r, own);
        wrote_cut(step.slot, *cut);
    }

    void add(const JoinAttention &step) {
        const int64_t head = width(step.out) / step.heads;
        const std::optional<Cut> in = cut_between(step.parts[0].in, head);
        if (!in) return add_whole(step);
        const Cut cut = *in;
        Cut of_sums = cut;
        for (Range &range : of_sums) range = {2 * (range.begin / head), 2 * (range.end / head)};
        JoinAttention own = step;
        for (auto &[values, sums] : own.parts) values = need_cut(values, cut), sums = need_cut(sums, of_sums);
        own.out = narrow(step.out, cut);
        for (size_t r = 0; r < ranks_; ++r) {
            if (cut[r].size() == 0) continue;
            own.heads = static_cast<int32_t>(cut[r].size() / head);
            emit(r, own);
        }
        wrote_cut(step.out, cut);
    }

    void add(const Activation &step) {
        const bool gate_cut = !state(step.gate).whole;
        const bool up_cut = step.up != kNoSlot && !state(step.up).whole;
        const bool equal =
            width(step.gate) == width(step.out) && (step.up == kNoSlot || width(step.up) == width(step.out));
        if ((!gate_cut && !up_cut) || !equal) return add_whole(step);
        const Cut cut = *state(gate_cut ? step.gate : step.up).cut;
        Activation own = step;
        own.gate = need_cut(step.gate, cut);
        own.up = need_cut(step.up, cut);
        own.out = narrow(step.out, cut);
        for (size_t r = 0; r < ranks_; ++r)
            if (cut[r].size() > 0) emit(r, own);
        wrote_cut(step.out, cut);
    }

    void add(const Experts &step) {
        if (step.down == kNoWeight)
            add_hidden(step);
        else if (step.gate == kNoWeight)
            add_output(step);
        else
            add_whole(step);
    }
    // h of the chosen experts, each expert cut alike.
    void add_hidden(const Experts &step) {
        need_whole(step.in);
        need_whole(step.logits);
        need_whole(step.chosen);
        const int64_t all = expert_width(program_, step);
        const Cut rows = cut_rows(all, hidden_rows_unit(step), shares_);
        const Cut cut = scaled(rows, step.routing.used);
        Experts own = step;
        own.out = narrow(step.out, cut);
        for (size_t r = 0; r < ranks_; ++r) {
            const Range &range = rows[r];
            if (range.size() == 0) continue;
            own.gate = slices_[r].rows(step.gate, range);
            own.gate_bias = slices_[r].values(step.gate_bias, range);
            if (has_merged_gate(program_, step)) {
                const Range of_up{range.begin + all, range.end + all};
                own.up = slices_[r].rows(step.gate, of_up);
                own.up_bias = slices_[r].values(step.gate_bias, of_up);
                own.up_scales = step.gate_scales;
            } else {
                own.up = slices_[r].rows(step.up, range);
                own.up_bias = slices_[r].values(step.up_bias, range);
            }
            emit(r, own);
        }
        wrote_cut(step.out, cut);
    }
    // The sum over the chosen experts.
    void add_output(const Experts &step) {
        const std::optional<Cut> cut = cut_of(step.out);
        if (!cut) return add_whole(step);
        need_whole(step.in);
        need_whole(step.logits);
        need_whole(step.chosen);
        Experts own = step;
        own.add = need_cut(step.add, *cut);
        own.out = narrow(step.out, *cut);
        for (size_t r = 0; r < ranks_; ++r) {
            if ((*cut)[r].size() == 0) continue;
            own.down = slices_[r].rows(step.down, (*cut)[r]);
            own.down_bias = slices_[r].values(step.down_bias, (*cut)[r]);
            emit(r, own);
        }
        wrote_cut(step.out, *cut);
    }

    void add(const Attention &step) {
        if (is_divided(program_, static_cast<size_t>(step.cache), cache_shares_)) return add_whole(step);
        const HeadCut cut = cut_heads(step.heads, step.kv_heads, shares_);
        assert(cut.kv_heads == out_.kv_heads[static_cast<size_t>(step.cache)]);
        Attention own = step;
        own.q = need_cut(step.q, scaled(cut.heads, step.head_dim_k));
        own.k = need_cut(step.k, scaled(cut.kv_heads, step.head_dim_k));
        own.v = need_cut(step.v, scaled(cut.kv_heads, step.head_dim_v));
        if (step.chosen_lists > 1)
            own.chosen = need_cut(step.chosen, scaled(cut.kv_heads, width(step.chosen) / step.chosen_lists));
        else
            need_whole(step.chosen);
        const Cut out = scaled(cut.heads, step.head_dim_v), sums = scaled(cut.heads, 2);
        if (step.attends()) own.out = narrow(step.out, out);
        if (step.sums != kNoSlot) own.sums = narrow(step.sums, sums);
        for (size_t r = 0; r < ranks_; ++r) {
            if (cut.heads[r].size() == 0) continue;
            own.heads = static_cast<int32_t>(cut.heads[r].size());
            own.kv_heads = static_cast<int32_t>(cut.kv_heads[r].size());
            if (step.chosen_lists > 1) own.chosen_lists = own.kv_heads;
            own.sinks = slices_[r].values(step.sinks, cut.heads[r]);
            own.slopes = slices_[r].values(step.slopes, cut.heads[r]);
            emit(r, own);
        }
        if (step.attends()) wrote_cut(step.out, out);
        if (step.sums != kNoSlot) wrote_cut(step.sums, sums);
    }

    void add(const Logits &step) {
        need_whole(step.in);
        const Cut rows = cut_rows(weight(step.weight).rows, kUnitRows, shares_);
        for (size_t r = 0; r < ranks_; ++r) {
            out_.programs[r].vocab = rows[r].size();
            if (rows[r].size() == 0) continue;
            Logits own = step;
            own.weight = slices_[r].rows(step.weight, rows[r]);
            own.bias = slices_[r].values(step.bias, rows[r]);
            emit(r, own);
        }
        out_.vocabulary = rows;
    }

    // --- the border of the program -------------------------------------------------------------------------

    void begin_outer_part(std::span<const Slot> in) {
        begin_stage();
        for (const Slot slot : in) {
            Cut first(ranks_, {width(slot), width(slot)});
            first.front().begin = 0;
            gather({slot, slot, first, std::vector<int64_t>(ranks_, 0)});
            wrote_whole(slot);
            insert_once(outside_, slot);
        }
    }
    void end_outer_part(std::span<const Slot> out) {
        for (const Slot slot : out) {
            need_whole(slot);
            // If it was just gathered, rank 0 has it in the memory of this slot.
            insert_once(out_.programs.front().parts.back().out, slot);
            insert_once(outside_, slot);
        }
        out_.part_ends.push_back(out_.stages.size());
    }

    void finish() {
        for (size_t r = 0; r < ranks_; ++r) {
            Program &rank = out_.programs[r];
            drop_unused(rank, r == 0 ? outside_ : Slots{});
            for (Program::Part &part : rank.parts)
                std::erase_if(part.in,
                              [&](Slot slot) { return rank.slots[static_cast<size_t>(slot)].width == 0; });
        }
    }

    const Program &program_;
    std::span<const double> shares_;
    std::span<const int32_t> cache_shares_;
    const size_t ranks_;
    const std::vector<std::optional<HeadSlot>> heads_;
    std::vector<bool> always_whole_;  // by slot
    std::vector<int32_t> slices_of_;  // by slot: Gather::slices
    std::vector<int64_t> units_;      // by slot: the unit in which a matrix product's output is cut
    std::vector<State> states_;       // by slot
    std::vector<Slots> pending_;      // by rank: slots gathered since its last part
    std::map<std::pair<Slot, Cut>, Slot> narrow_;
    std::vector<WeightSlices> slices_;  // by rank
    Slots outside_;                     // slots that cross the border of the whole program
    const SumSlots sums_;
    int32_t layer_ = -1;  // of the current step
    TensorProgram out_;
};

}  // namespace

TensorProgram cut_program(const Program &program, std::span<const double> shares,
                          std::span<const int32_t> cache_shares, MatrixCut matrices) {
    Program whole = shares.size() > 1 ? with_expert_halves(program) : program;
    SumSlots sums;
    if (matrices == MatrixCut::Columns && shares.size() > 1) sums = add_sum_slots(whole);
    return Cutter(whole, shares, cache_shares, std::move(sums)).cut();
}

size_t gathered_bytes_per_token(const TensorProgram &tensor) {
    int64_t values = 0;
    for (const TensorProgram::Stage &stage : tensor.stages)
        for (const Gather &gather : stage.gathers)
            for (const Range &piece : gather.pieces)
                values += piece.size() * (static_cast<int64_t>(tensor.programs.size()) - 1);
    return static_cast<size_t>(values) * sizeof(float);
}

}  // namespace runnel::kernels
