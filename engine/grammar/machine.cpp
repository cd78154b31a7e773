#include "engine/grammar/machine.h"

#include <algorithm>
#include <unordered_set>

namespace runnel::grammar {
namespace {

using Op = Program::Op;

uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    return h ^ h >> 32;
}
uint64_t combine(uint64_t h, uint64_t value) {
    return mix(h * 31 + value + 0x9e3779b97f4a7c15ull);
}

constexpr size_t kRowsOfBlock = 256;

}  // namespace

Machine::Machine(Program program, Limits limits) : program_(std::move(program)), limits_(limits) {
    takes_plain_.resize(program_.nodes.size());
    plain_loop_.resize(program_.nodes.size());
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
        const Program::Node &node = program_.nodes[i];
        if (node.op != Op::Switch) continue;
        for (uint32_t e = node.a; e < node.b; ++e) {
            const Program::Edge &edge = program_.edges[e];
            for (uint32_t byte = edge.first; byte <= edge.last; ++byte)
                if (byte >= 0x20 && byte != '"' && byte != '\\') takes_plain_[i] = true;
        }
    }
    for (size_t i = 0; i < program_.plain_loops.size(); ++i)
        plain_loop_[program_.plain_loops[i].node] = static_cast<uint32_t>(i + 1);
    seen_.resize(1 << 10);
    seen_round_.resize(1 << 10);
    key_sets_.push_back({});
    stacks_.push_back({0, 1});
    frame_pool_.push_back({kBottomFrame, 0, 0});
    depths_.push_back(0);
    intern_state({}, false);  // kDead
    ++round_;
    push(program_.start, kBottom);
    start_ = close();
}

uint32_t Machine::edge_target(const Program::Node &node, uint8_t byte) const {
    const auto begin = program_.edges.begin() + node.a, end = program_.edges.begin() + node.b;
    const auto at = std::lower_bound(
        begin, end, byte, [](const Program::Edge &edge, uint8_t value) { return edge.last < value; });
    return at != end && at->first <= byte ? at->target : kUnknown;
}

StateId Machine::compute_step(StateId state, size_t byte_class) {
    ++round_;
    seen_count_ = 0;
    const uint8_t byte = program_.class_sample[byte_class];
    const State from = states_[state];
    for (uint32_t i = 0; i < from.count; ++i) {
        const Way way = way_pool_[from.begin + i];
        const Program::Node &node = program_.nodes[way.node];
        if (node.op != Op::Switch) continue;
        const uint32_t target = edge_target(node, byte);
        if (target != kUnknown) push(target, way.stack);
    }
    const StateId next = close();
    if (!rows_[state]) {
        const size_t classes = program_.classes();
        if (rows_used_ % kRowsOfBlock == 0)
            row_blocks_.push_back(std::make_unique<uint32_t[]>(kRowsOfBlock * classes));
        rows_[state] = row_blocks_.back().get() + rows_used_++ % kRowsOfBlock * classes;
        std::fill_n(rows_[state], classes, kUnknown);
    }
    rows_[state][byte_class] = next;
    return next;
}

StateId Machine::advance(StateId state, std::string_view bytes, size_t *read) {
    size_t count = 0;
    for (const char byte : bytes) {
        const StateId next = step(state, static_cast<uint8_t>(byte));
        if (next == kDead) {
            if (read) *read = count;
            return kDead;
        }
        state = next;
        ++count;
    }
    if (read) *read = count;
    return state;
}

StateId Machine::step_token(StateId state, int32_t token) {
    ++round_;
    seen_count_ = 0;
    const State from = states_[state];
    for (uint32_t i = 0; i < from.count; ++i) {
        const Way way = way_pool_[from.begin + i];
        const Program::Node &node = program_.nodes[way.node];
        if (node.op != Op::Token) continue;
        const Program::TokenSet &set = program_.token_sets[node.a];
        if (std::binary_search(set.tokens.begin(), set.tokens.end(), token) != set.negated)
            push(node.b, way.stack);
    }
    return close();
}

StateId Machine::unite(StateId a, StateId b) {
    if (a == b || b == kDead) return a;
    if (a == kDead) return b;
    ++round_;
    seen_count_ = 0;
    for (const StateId state : {a, b})
        for (uint32_t i = 0; i < states_[state].count; ++i) {
            const Way way = way_pool_[states_[state].begin + i];
            push(way.node, way.stack);
        }
    const bool accepts = states_[a].accepts || states_[b].accepts;
    const StateId both = close();
    return accepts ? intern_state(found_, true) : both;
}

bool Machine::see(uint32_t node, StackId stack) {
    const uint64_t key = uint64_t{node} << 32 | stack;
    const size_t mask = seen_.size() - 1;
    for (size_t at = mix(key) & mask;; at = (at + 1) & mask) {
        if (seen_round_[at] != round_) {
            seen_[at] = key;
            seen_round_[at] = round_;
            if (++seen_count_ * 2 > seen_.size()) grow_seen();
            return true;
        }
        if (seen_[at] == key) return false;
    }
}

bool Machine::has_seen(uint32_t node, StackId stack) const {
    const uint64_t key = uint64_t{node} << 32 | stack;
    const size_t mask = seen_.size() - 1;
    for (size_t at = mix(key) & mask; seen_round_[at] == round_; at = (at + 1) & mask)
        if (seen_[at] == key) return true;
    return false;
}

void Machine::grow_seen() {
    if (seen_count_ > limits_.steps) throw GrammarLimit("the grammar is too ambiguous for this text");
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < seen_.size(); ++i)
        if (seen_round_[i] == round_) keys.push_back(seen_[i]);
    seen_.assign(seen_.size() * 2, 0);
    seen_round_.assign(seen_.size(), 0);
    round_ = 1;
    const size_t mask = seen_.size() - 1;
    for (const uint64_t key : keys) {
        size_t at = mix(key) & mask;
        while (seen_round_[at] == round_) at = (at + 1) & mask;
        seen_[at] = key;
        seen_round_[at] = round_;
    }
}

void Machine::push(uint32_t node, StackId stack) {
    if (see(node, stack)) open_.push_back({node, stack});
}

StateId Machine::close() {
    accepts_ = false;
    found_.clear();
    try {
        while (!open_.empty()) {
            const Way way = open_.back();
            open_.pop_back();
            const Program::Node &node = program_.nodes[way.node];
            if (node.op == Op::Switch || node.op == Op::Token)
                found_.push_back(way);
            else
                follow(node, way.stack);
        }
    } catch (...) {
        open_.clear();
        throw;
    }
    std::sort(found_.begin(), found_.end());
    size_t kept = 0;
    for (const Way &way : found_) {
        if (kept > 0 && found_[kept - 1].node == way.node)
            found_[kept - 1].stack = unite_stacks(found_[kept - 1].stack, way.stack);
        else
            found_[kept++] = way;
    }
    found_.resize(kept);
    if (kept > limits_.ways) throw GrammarLimit("the grammar is too ambiguous for this text");
    return intern_state(found_, accepts_);
}

void Machine::follow(const Program::Node &node, StackId stack) {
    switch (node.op) {
        case Op::Split:
            for (uint32_t i = node.b; i-- > node.a;) push(program_.targets[i], stack);
            break;
        case Op::Call:
            push(node.a, push_frame(node.b * 2, 0, stack));
            break;
        case Op::Return:
            pop_return(stack);
            break;
        case Op::Enter:
            push(node.b, push_frame(node.a * 2 + 1, 0, stack));
            break;
        case Op::Tick:
            count_up(node.a, stack, node.b);
            break;
        case Op::Guard: {
            const Program::Intervals &allowed = program_.guards[node.a];
            std::vector<Frame> kept;
            for (const Frame &frame : frames(stack)) {
                const auto at = std::lower_bound(
                    allowed.begin(), allowed.end(), frame.count,
                    [](const auto &interval, uint32_t count) { return interval.second < count; });
                if (at != allowed.end() && at->first <= frame.count) kept.push_back(frame);
            }
            if (!kept.empty()) push(node.b, intern_stack(std::move(kept)));
            break;
        }
        case Op::Leave:
            leave(node.a, stack, node.b);
            break;
        case Op::Insert:
        case Op::Absent:
            filter_keys(node.b, stack, node.a, node.op == Op::Insert);
            break;
        case Op::Switch:
        case Op::Token:
            break;
    }
}

void Machine::pop_return(StackId stack) {
    for (size_t i = 0; i < frames(stack).size(); ++i) {
        const Frame frame = frames(stack)[i];
        if (frame.code == kBottomFrame)
            accepts_ = true;
        else
            push(frame.code / 2, frame.below);
    }
}

// Without a maximum, a counter stops at its minimum. Rounds that read nothing are not counted: where they can
// happen, the minimum is 0 (Compiler::build_repeat), and the count before such a round allows all that the
// count after it would.
void Machine::count_up(uint32_t loop, StackId stack, uint32_t next) {
    const Program::Loop &bounds = program_.loops[loop];
    if (bounds.min == 0 && has_seen(next, stack)) return;
    std::vector<Frame> kept;
    for (Frame frame : frames(stack)) {
        if (bounds.max == kUnbounded)
            frame.count = std::min(frame.count + 1, bounds.min);
        else if (++frame.count > bounds.max)
            continue;
        kept.push_back(frame);
    }
    if (!kept.empty()) push(next, intern_stack(std::move(kept)));
}

bool Machine::enough(const Program::Loop &loop, uint32_t count) const {
    if (!loop.is_set) return count >= loop.min;
    const std::vector<uint64_t> &keys = key_sets_[count];
    return std::all_of(loop.required.begin(), loop.required.end(), [&](uint32_t key) {
        return key / 64 < keys.size() && (keys[key / 64] >> key % 64 & 1);
    });
}

void Machine::leave(uint32_t loop, StackId stack, uint32_t next) {
    for (size_t i = 0; i < frames(stack).size(); ++i) {
        const Frame frame = frames(stack)[i];
        if (enough(program_.loops[loop], frame.count)) push(next, frame.below);
    }
}

void Machine::filter_keys(uint32_t key, StackId stack, uint32_t next, bool insert) {
    std::vector<Frame> kept;
    for (Frame frame : frames(stack)) {
        std::vector<uint64_t> keys = key_sets_[frame.count];
        if (keys.size() <= key / 64) keys.resize(key / 64 + 1);
        uint64_t &word = keys[key / 64];
        const uint64_t bit = uint64_t{1} << key % 64;
        if (word & bit) continue;
        word |= bit;
        if (insert) frame.count = intern_keys(std::move(keys));
        kept.push_back(frame);
    }
    if (!kept.empty()) push(next, intern_stack(std::move(kept)));
}

uint32_t Machine::intern_keys(std::vector<uint64_t> keys) {
    uint64_t hash = keys.size();
    for (const uint64_t word : keys) hash = combine(hash, word);
    for (auto [at, end] = key_set_index_.equal_range(hash); at != end; ++at)
        if (key_sets_[at->second] == keys) return at->second;
    key_sets_.push_back(std::move(keys));
    const auto id = static_cast<uint32_t>(key_sets_.size() - 1);
    key_set_index_.emplace(hash, id);
    return id;
}

Machine::StackId Machine::push_frame(uint32_t code, uint32_t count, StackId below) {
    return intern_stack({{code, count, below}});
}

// Once a repetition has reached its minimum, a smaller count allows all that a larger one does.
void Machine::drop_dominated(std::vector<Frame> &frames) const {
    size_t kept = 0;
    for (size_t i = 0; i < frames.size(); ++i) {
        const Frame &frame = frames[i];
        bool dominated = false;
        if (frame.code != kBottomFrame && frame.code % 2 == 1 && !program_.loops[frame.code / 2].is_set) {
            const uint32_t min = program_.loops[frame.code / 2].min;
            for (size_t j = kept; j-- > 0 && frames[j].code == frame.code && !dominated;)
                dominated = frames[j].below == frame.below && frames[j].count >= min;
        }
        if (!dominated) frames[kept++] = frames[i];
    }
    frames.resize(kept);
}

Machine::StackId Machine::intern_stack(std::vector<Frame> frames) {
    if (frames.size() > 1) {
        std::sort(frames.begin(), frames.end());
        frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
        size_t kept = 0;
        for (const Frame &frame : frames) {
            if (kept > 0 && frames[kept - 1].code == frame.code && frames[kept - 1].count == frame.count)
                frames[kept - 1].below = unite_stacks(frames[kept - 1].below, frame.below);
            else
                frames[kept++] = frame;
        }
        frames.resize(kept);
        if (kept > 1) drop_dominated(frames);
    }
    uint64_t hash = frames.size();
    uint32_t depth = 0;
    for (const Frame &frame : frames) {
        hash = combine(hash, uint64_t{frame.code} << 32 | frame.count);
        hash = combine(hash, frame.below);
        if (frame.code != kBottomFrame) depth = std::max(depth, depths_[frame.below] + 1);
    }
    for (auto [at, end] = stack_index_.equal_range(hash); at != end; ++at) {
        const auto have = this->frames(at->second);
        if (std::equal(have.begin(), have.end(), frames.begin(), frames.end())) return at->second;
    }
    if (frames.size() == 1 && frames[0].code == kBottomFrame) return kBottom;
    if (depth > limits_.depth) throw GrammarLimit("the text is nested too deeply for its grammar");
    if (frames.size() > limits_.ways) throw GrammarLimit("the grammar is too ambiguous for this text");
    if (stacks_.size() >= limits_.stacks)
        throw GrammarLimit("the grammar takes too much memory for this text");
    stacks_.push_back({static_cast<uint32_t>(frame_pool_.size()), static_cast<uint32_t>(frames.size())});
    frame_pool_.insert(frame_pool_.end(), frames.begin(), frames.end());
    depths_.push_back(depth);
    const auto id = static_cast<StackId>(stacks_.size() - 1);
    stack_index_.emplace(hash, id);
    return id;
}

Machine::StackId Machine::unite_stacks(StackId a, StackId b) {
    if (a == b) return a;
    const uint64_t key = uint64_t{std::min(a, b)} << 32 | std::max(a, b);
    if (const auto at = unions_.find(key); at != unions_.end()) return at->second;
    std::vector<Frame> both(frames(a).begin(), frames(a).end());
    both.insert(both.end(), frames(b).begin(), frames(b).end());
    const StackId id = intern_stack(std::move(both));
    unions_.emplace(key, id);
    return id;
}

StateId Machine::intern_state(const std::vector<Way> &ways, bool accepts) {
    uint64_t hash = accepts;
    for (const Way &way : ways) hash = combine(hash, uint64_t{way.node} << 32 | way.stack);
    for (auto [at, end] = state_index_.equal_range(hash); at != end; ++at) {
        const State &state = states_[at->second];
        if (state.accepts == accepts && state.count == ways.size() &&
            std::equal(ways.begin(), ways.end(), way_pool_.begin() + state.begin))
            return at->second;
    }
    if (states_.size() >= limits_.states)
        throw GrammarLimit("the grammar takes too much memory for this text");
    states_.push_back({static_cast<uint32_t>(way_pool_.size()), static_cast<uint32_t>(ways.size()),
                       plain_run_of(ways), accepts});
    way_pool_.insert(way_pool_.end(), ways.begin(), ways.end());
    rows_.push_back(nullptr);
    const auto id = static_cast<StateId>(states_.size() - 1);
    state_index_.emplace(hash, id);
    return id;
}

std::vector<uint8_t> Machine::next_bytes(StateId state) {
    std::vector<uint8_t> bytes;
    for (uint32_t byte = 0; byte < 256; ++byte)
        if (step(state, static_cast<uint8_t>(byte)) != kDead) bytes.push_back(static_cast<uint8_t>(byte));
    return bytes;
}

std::vector<uint32_t> Machine::next_token_sets(StateId state) const {
    std::vector<uint32_t> sets;
    for (uint32_t i = 0; i < states_[state].count; ++i) {
        const Program::Node &node = program_.nodes[way_pool_[states_[state].begin + i].node];
        if (node.op == Op::Token) sets.push_back(node.a);
    }
    std::sort(sets.begin(), sets.end());
    sets.erase(std::unique(sets.begin(), sets.end()), sets.end());
    return sets;
}

int Machine::forced_byte(StateId state) {
    if (accepts(state)) return -1;
    int only = -1;
    for (uint32_t i = 0; i < states_[state].count; ++i) {
        const Program::Node &node = program_.nodes[way_pool_[states_[state].begin + i].node];
        if (node.op == Op::Token || node.b - node.a != 1) return -1;
        const Program::Edge &edge = program_.edges[node.a];
        if (edge.first != edge.last || (only >= 0 && only != edge.first)) return -1;
        only = edge.first;
    }
    return only;
}

std::optional<std::string> Machine::shortest_end(StateId state, size_t most_states) {
    struct Step {
        StateId state;
        size_t before;
        uint8_t byte;
    };
    std::vector<Step> steps{{state, 0, 0}};
    std::unordered_set<StateId> known{state};
    for (size_t i = 0; i < steps.size() && steps.size() < most_states; ++i) {
        if (accepts(steps[i].state)) {
            std::string text;
            for (size_t at = i; at > 0; at = steps[at].before) text += static_cast<char>(steps[at].byte);
            return std::string(text.rbegin(), text.rend());
        }
        for (const uint8_t byte : program_.class_sample) {
            const StateId next = step(steps[i].state, byte);
            if (next != kDead && known.insert(next).second) steps.push_back({next, i, byte});
        }
    }
    return std::nullopt;
}

uint32_t Machine::plain_run_of(const std::vector<Way> &ways) const {
    uint32_t run = 0;
    for (const Way &way : ways) {
        if (plain_loop_[way.node] == 0) continue;
        const Program::PlainLoop &loop = program_.plain_loops[plain_loop_[way.node] - 1];
        if (loop.most == kUnbounded) return kUnbounded;
        if (loop.loop == kUnbounded) {
            run = std::max(run, loop.most);
            continue;
        }
        for (const Frame &frame : frames(way.stack))
            if (frame.count < loop.most) run = std::max(run, loop.most - frame.count);
    }
    return run;
}

bool Machine::plain_otherwise(StateId state) const {
    uint32_t loops = 0;
    for (uint32_t i = 0; i < states_[state].count; ++i) {
        const uint32_t node = way_pool_[states_[state].begin + i].node;
        if (!takes_plain_[node]) continue;
        const uint32_t loop = plain_loop_[node];
        if (loop == 0 || !program_.plain_loops[loop - 1].alike || ++loops > 1) return true;
    }
    return false;
}

size_t Machine::memory() const {
    return frame_pool_.size() * sizeof(Frame) + (stacks_.size() + unions_.size() + states_.size()) * 64 +
           way_pool_.size() * sizeof(Way) +
           row_blocks_.size() * kRowsOfBlock * program_.classes() * sizeof(uint32_t);
}

void Machine::forget_steps() {
    std::fill(rows_.begin(), rows_.end(), nullptr);
    row_blocks_.clear();
    rows_used_ = 0;
}

}  // namespace runnel::grammar
