// Runs a Program. A state is the set of all ways in which a text can have been read so far, as one number:
// equal sets have equal numbers, so copying, comparing and going back cost nothing.
//
//   Machine machine(compile(grammar));
//   StateId state = machine.start();
//   for (uint8_t byte : text) state = machine.step(state, byte);
//   machine.accepts(state);
//
// A way is a node of the program and a stack of frames. Ways that differ only below the top of their stacks
// are merged, so the cost of an ambiguous grammar grows with the number of nodes reached, not with the number
// of parses. States are never freed; steps are cached. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/grammar/program.h"

namespace runnel::grammar {

using StateId = uint32_t;
inline constexpr StateId kDead = 0;  // no text with this beginning matches

// Beyond these, a Machine throws GrammarLimit.
struct MachineLimits {
    size_t states = 4'000'000;
    size_t stacks = 4'000'000;
    size_t ways = 100'000;     // of one state
    size_t steps = 2'000'000;  // (node, stack) pairs visited between two bytes
    uint32_t depth = 10'000;   // frames of a stack
};

class Machine {
  public:
    using Limits = MachineLimits;
    explicit Machine(Program program, Limits limits = {});

    StateId start() const { return start_; }
    // Throws GrammarLimit.
    StateId step(StateId state, uint8_t byte) {
        const uint32_t *row = rows_[state];
        const size_t c = program_.byte_class[byte];
        if (row && row[c] != kUnknown) return row[c];
        return compute_step(state, c);
    }
    // kDead if a byte is refused. *read, if not null: the number of bytes before that one.
    StateId advance(StateId state, std::string_view bytes, size_t *read = nullptr);
    // The state after a token that a Token node matches by its id; kDead if none does.
    StateId step_token(StateId state, int32_t token);

    // The union of two states.
    StateId unite(StateId a, StateId b);

    // Whether the text may end here.
    bool accepts(StateId state) const { return states_[state].accepts; }
    // Whether any byte or token can follow.
    bool goes_on(StateId state) const { return states_[state].count > 0; }

    // What can come next: byte classes, and the token sets of Token nodes.
    std::vector<uint8_t> next_bytes(StateId state);
    std::vector<uint32_t> next_token_sets(StateId state) const;
    // The only byte that can follow; -1 if there are several, if the text may end, or if a token may follow.
    int forced_byte(StateId state);

    // The shortest text from a state to one that accepts, among at most `most_states` states: empty if the
    // state itself accepts, nullopt if none was found. Throws GrammarLimit.
    std::optional<std::string> shortest_end(StateId state, size_t most_states = 50'000);

    // A lower bound on how many plain characters (see plain_characters()) can follow, whichever they are.
    // kUnbounded: any number.
    uint32_t plain_run(StateId state) const { return states_[state].plain_run; }
    // Whether a plain character can also follow in a way that plain_run() does not count.
    bool plain_otherwise(StateId state) const;

    const Program &program() const { return program_; }
    size_t states() const { return states_.size(); }
    size_t memory() const;  // in bytes, estimated
    // Drops the cached steps, which are computed again when needed.
    void forget_steps();

  private:
    using StackId = uint32_t;
    static constexpr uint32_t kUnknown = 0xffffffff;
    static constexpr StackId kBottom = 0;  // the set of the empty stack alone

    // `code`: 2 * the node to which a rule returns, 2 * a loop + 1, or kBottomFrame.
    struct Frame {
        uint32_t code, count;
        StackId below;
        auto operator<=>(const Frame &) const = default;
    };
    struct Way {
        uint32_t node;
        StackId stack;
        auto operator<=>(const Way &) const = default;
    };
    struct Span {
        uint32_t begin, count;
    };
    struct State {
        uint32_t begin, count;
        uint32_t plain_run;
        bool accepts;
    };
    static constexpr uint32_t kBottomFrame = 0xffffffff;

    StateId compute_step(StateId state, size_t byte_class);
    StateId close();  // the state of all ways that open_ leads to without reading
    void follow(const Program::Node &node, StackId stack);
    void push(uint32_t node, StackId stack);
    void pop_return(StackId stack);
    void count_up(uint32_t loop, StackId stack, uint32_t next);
    void leave(uint32_t loop, StackId stack, uint32_t next);
    void filter_keys(uint32_t key, StackId stack, uint32_t next, bool insert);
    bool enough(const Program::Loop &loop, uint32_t count) const;

    StackId intern_stack(std::vector<Frame> frames);
    StackId push_frame(uint32_t code, uint32_t count, StackId below);
    StackId unite_stacks(StackId a, StackId b);
    StateId intern_state(const std::vector<Way> &ways, bool accepts);
    uint32_t plain_run_of(const std::vector<Way> &ways) const;
    void drop_dominated(std::vector<Frame> &frames) const;
    std::span<const Frame> frames(StackId stack) const {
        return {frame_pool_.data() + stacks_[stack].begin, stacks_[stack].count};
    }
    uint32_t intern_keys(std::vector<uint64_t> keys);
    uint32_t edge_target(const Program::Node &node, uint8_t byte) const;

    Program program_;
    Limits limits_;
    std::vector<uint8_t> takes_plain_;  // [nodes]: whether a plain character can begin there
    std::vector<uint32_t> plain_loop_;  // [nodes]: index in program_.plain_loops + 1, or 0

    std::vector<Frame> frame_pool_;
    std::vector<Span> stacks_;
    std::vector<uint32_t> depths_;  // [stacks]
    std::unordered_multimap<uint64_t, StackId> stack_index_;
    std::unordered_map<uint64_t, StackId> unions_;
    std::vector<Way> way_pool_;
    std::vector<State> states_;
    std::unordered_multimap<uint64_t, StateId> state_index_;
    std::vector<uint32_t *> rows_;  // [states]: null, or [classes] of the next state
    std::vector<std::unique_ptr<uint32_t[]>> row_blocks_;
    size_t rows_used_ = 0;
    std::vector<std::vector<uint64_t>> key_sets_;
    std::unordered_multimap<uint64_t, uint32_t> key_set_index_;

    // Work memory of close().
    std::vector<Way> open_, found_;
    std::vector<uint64_t> seen_;  // open addressing
    std::vector<uint32_t> seen_round_;
    uint32_t round_ = 0;
    size_t seen_count_ = 0;
    bool accepts_ = false;
    bool see(uint32_t node, StackId stack);  // true: for the first time
    bool has_seen(uint32_t node, StackId stack) const;
    void grow_seen();

    StateId start_ = 0;
};

}  // namespace runnel::grammar
