// Speculative decoding of one sequence: a source drafts the next tokens, one pass of the model computes all
// of them, and the tokens that the model itself would have produced are kept.
//
//   speculator.propose(text, most, 0, sampler);      // text ends with the token sampled last
//   speculator.append_to(entry);                     // after that token, which is due
//   ... a pass ...
//   VerifyResult v = speculator.verify(entry, entry.rows(), sampler);
//   if (v.branch) entry.choose_branch(*v.branch);
//   entry.truncate(text + v.tokens.size() - 1);      // the last of them was not computed yet
//
// A source may offer branches: alternatives to the end of its draft. Those that pay are computed in the same
// pass, each on a fork of the sequence's cache. Every token thus sees the same past in the same cells as
// without drafts, and its logits have the same bits.
//
// Under DraftRule::Same every token is the one that the sampler draws from the model's logits, with its noise
// (sampler.h): the text is the same as without drafts, byte for byte, and a draft is kept when it is that
// token. Under DraftRule::Rejection, the text depends on the drafts, and only its distribution is that of the
// model: draft x, drawn from q, is kept with probability min(1, p(x) / q(x)); a rejected draft is replaced by
// a draw from max(p - q, 0), normalized (Leviathan et al. 2023; Chen et al. 2023). There are no branches
// then: a second guess would have to be drawn from that residual distribution.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/sampler.h"
#include "engine/decode/scheduled_sequence.h"
#include "engine/decode/speculation/draft_length.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/pass_costs.h"
#include "engine/decode/speculation/running_median.h"

namespace runnel::decode {

enum class DraftRule { Same, Rejection };

struct SpeculationOptions {
    DraftLengthOptions length = {};  // `most` is at most kMostDrafts
    float least_probability = 0;     // a draft ends before the first token that is less probable
    DraftRule rule = DraftRule::Same;
};

// What passes of a model cost on its device; shared by all its sequences.
class SharedCosts {
  public:
    SharedCosts() = default;
    explicit SharedCosts(const PassCosts &measured) : costs_(measured), measured_(true) {}

    // Measures the costs once, after the cached tokens of `sequence`, with `candidates` logits of each row
    // (0: whole rows). Does nothing until measuring would take less than about a hundredth of the time of the
    // tokens so far and the `wanted` ones to come; until then, costs come from observed passes alone.
    void measure(const Sequence &sequence, int32_t candidates, int64_t wanted,
                 const StopRequest *stop = nullptr);
    void observe(const Pass &pass);
    const PassCosts &costs() const { return costs_; }
    // Seconds of a plain step per sequence when `sequences` share a pass; for one sequence, the median of the
    // last plain steps.
    double plain_step(int32_t sequences) const;

  private:
    PassCosts costs_;
    RunningMedian<31> plain_;  // seconds of passes of one token
    int64_t passes_ = 0;       // observed
    bool measured_ = false;
};

// What speculation did, over one or several sequences.
struct SpeculationCounts {
    int64_t drafted = 0, accepted = 0;  // drafted tokens that were verified, and those that were right
    int64_t passes = 0;                 // with drafts
    int64_t plain_passes = 0;           // of one token
    double draft_seconds = 0;           // in the sources
    double verify_seconds = 0;          // in passes with drafts
    double plain_seconds = 0;           // in passes without drafts
    int64_t branches = 0;               // verified branches; their tokens are included in `drafted`
    int64_t branches_accepted = 0;      // branches in which the text went on; tokens included in `accepted`
    double saved_seconds = 0;  // how much longer plain steps for the same tokens would take; may be < 0
    std::string failure = {};  // why a source gave up, or empty
    std::string sources = {};  // their names: "lookup, eagle3"

    void add(const SpeculationCounts &other);
    SpeculationCounts since(const SpeculationCounts &before) const;
    double acceptance_rate() const { return drafted > 0 ? double(accepted) / double(drafted) : 0; }
    double mean_accepted() const { return passes > 0 ? double(accepted) / double(passes) : 0; }
    // Against plain steps, at their measured cost; 1 when nothing was computed.
    double speedup() const;
};

// The result of a pass.
struct VerifyResult {
    std::vector<TokenId> tokens;   // at least one: the accepted drafts and, as a rule, one more
    std::vector<LogitRow> rows;    // the row of each token
    std::optional<size_t> branch;  // the branch that holds the tokens; nullopt: the drafts do
};

// One verified pass, for display.
struct DraftPass {
    std::vector<TokenId> drafts;         // guessed, without branches; empty: a plain pass of one token
    std::vector<TokenId> tokens;         // what the pass gave, at least one token
    size_t accepted = 0;                 // leading tokens that were guessed, in a branch too
    std::optional<size_t> branch_after;  // accepted tokens of `drafts` before the branch that holds the rest
    int64_t guessed = 0;                 // all guesses, with those of branches
    double draft_seconds = 0, pass_seconds = 0;
};

class Speculator {
  public:
    // Without `costs`, every draft is as long as allowed.
    Speculator(std::vector<std::unique_ptr<DraftSource>> sources, const SpeculationOptions &options,
               std::shared_ptr<SharedCosts> costs = nullptr);

    // Adds a source in front of the others.
    void add_first(std::unique_ptr<DraftSource> source);

    // Guesses what follows `text`, at most `most` tokens; other sequences bring `beside` tokens to the pass.
    // A source that fails is not asked again. A stop that is requested ends the guessing.
    void propose(std::span<const TokenId> text, int32_t most, int32_t beside, Sampler &sampler,
                 const StopRequest *stop = nullptr);
    // propose() for several speculators at once: draft models serve all of them in common passes.
    struct Part {
        Speculator *speculator;
        std::span<const TokenId> text;
        int32_t most, beside;
        Sampler *sampler;
        const SequenceCache *cache = nullptr;  // of the sequence; null: sources that need it do not draft
    };
    static void propose_together(std::span<const Part> parts, const StopRequest *stop = nullptr);
    std::span<const TokenId> drafts() const { return draft_.tokens; }
    // The branches of drafts(), in the order in which append_to() adds them.
    std::span<const Branch> branches() const { return draft_.branches; }
    // Appends drafts and branches to the sequence, after the token that is due.
    void append_to(ScheduledSequence &entry) const;

    // Call before verify(): this sequence's share of the seconds of the pass that computed the drafts.
    // verify() drops the drafts.
    void passed(double seconds);
    // Verifies the drafts, all of which the sequence must still have. `rows`: those of the sequence. If a
    // later row cannot be sampled from, the result ends before that token. Throws what sample_next() throws
    // for the first row.
    VerifyResult verify(const ScheduledSequence &entry, const LogitRows &rows, Sampler &sampler);
    // Drops the drafts, if there was no pass.
    void forget();

    // From now on, remembers every pass; take_log() returns those since the last call.
    void log_passes() { logs_ = true; }
    std::vector<DraftPass> take_log() { return std::exchange(log_, {}); }

    SharedCosts *costs() const { return costs_.get(); }
    const SpeculationCounts &counts() const { return counts_; }

  private:
    struct Source {
        std::unique_ptr<DraftSource> drafts;  // null: the source failed
        DraftLength length;
        DraftLength::Round round = {};  // of the current pass
        std::vector<float> probabilities = {};
    };
    struct Verdict {
        TokenId token;
        bool accepted;  // false: it replaces a rejected draft
    };
    class Asking;
    bool settle(Source &source, Draft draft, int32_t most);
    void give_up(Source &source, const std::string &why);
    void shape(Draft &draft, const DraftShape &shape, int32_t most);
    Verdict verify_one(size_t index, const LogitRow &row, std::span<const TokenId> history,
                       Sampler &sampler) const;
    void record(const VerifyResult &result, size_t accepted);
    std::optional<DraftLength::Round::Second> second_choice(const VerifyResult &result,
                                                            size_t accepted) const;

    SpeculationOptions options_;
    std::shared_ptr<SharedCosts> costs_;
    std::vector<Source> sources_;
    Draft draft_;                  // the part that is verified
    std::vector<Branch> offered_;  // all branches of the source, cut to their first tokens
    int32_t beside_ = 0;
    double draft_seconds_ = 0, pass_seconds_ = 0;  // of the current pass
    SpeculationCounts counts_;
    bool logs_ = false;
    std::vector<DraftPass> log_;
};

// One for each sequence.
using MakeSpeculator = std::function<std::unique_ptr<Speculator>()>;

// A sequence that continues with `last`. `speculator` may be null: no drafts.
struct Continuation {
    ScheduledSequence *entry;
    TokenId last;       // sampled, not an end, and not in the sequence yet
    int64_t remaining;  // tokens still to come after it
    Speculator *speculator;
    Sampler *sampler;
};
// Appends `last` to each sequence and, if everything before it is cached, drafts: as many as fit the context,
// the sequence's share of a pass (one of `sequences` equal shares), and `remaining`.
void append_with_drafts(std::span<const Continuation> continuations, int32_t sequences = 1,
                        const StopRequest *stop = nullptr);
// The tokens that follow, at least one, with the rows that they were sampled from. The sequence keeps all of
// them but the last.
VerifyResult take_tokens(ScheduledSequence &entry, const LogitRows &rows, Speculator *speculator,
                         Sampler &sampler);

}  // namespace runnel::decode
