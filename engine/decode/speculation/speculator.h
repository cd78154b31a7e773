// Speculative decoding of one sequence: a source guesses the next tokens, one pass of the model computes all
// of them, and what the model itself would have said is kept.
//
//   speculator.propose(text, most, sampler);         // text ends with the token sampled last
//   session.append_drafts(speculator.drafts());      // behind that token, which is due
//   ... a pass ...
//   tokens = speculator.judge(session.logits(), session.tokens(), sampler);
//   session.truncate(text + tokens.size() - 1);      // the last of them was not computed yet
//
// Under DraftRule::Same every token is the one that the sampler draws from the model's logits, with its noise
// (sampler.h): the text is the same as without drafts, byte for byte, and a draft is kept when it is that
// token. Under DraftRule::Rejection, the text depends on the drafts, and only its distribution is that of the
// model: draft x, drawn from q, is kept with probability min(1, p(x) / q(x)); the token in place of one that
// is not is drawn from max(p - q, 0), normalised (Leviathan et al. 2023; Chen et al. 2023).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/answer.h"
#include "engine/decode/sampler.h"
#include "engine/decode/session.h"
#include "engine/decode/speculation/draft_length.h"
#include "engine/decode/speculation/draft_source.h"
#include "engine/decode/speculation/pass_costs.h"
#include "engine/decode/speculation/running_median.h"

namespace runnel::decode {

enum class DraftRule { Same, Rejection };

// Drafts of one pass: with the token in front of them, no more than what the scheduler takes for the
// continuation of an answer.
inline constexpr int32_t kMostDrafts = 31;

struct SpeculationOptions {
    DraftLengthOptions length = {};  // `most` is at most kMostDrafts
    float least_probability = 0;     // where the source is less sure of a token than that, the draft ends
    DraftRule rule = DraftRule::Same;
};

// What passes of a model cost on its device; shared by all its sequences.
class SharedCosts {
  public:
    SharedCosts() = default;
    explicit SharedCosts(const PassCosts &measured) : costs_(measured), measured_(true) {}

    // Once enough tokens have come, or are sure to come (`wanted`), for it to take about a hundredth of their
    // time, the costs are measured behind what `session` has in the cache. Until then they are what passes
    // turn out to take.
    void measure(const Session &session, int64_t wanted);
    void observe(const Pass &pass);
    const PassCosts &costs() const { return costs_; }
    // Of a plain step of one sequence among `sequences`, its share: the median of the last ones where there
    // was only one.
    double plain_step(int32_t sequences) const;

  private:
    PassCosts costs_;
    RunningMedian<31> plain_;  // seconds of passes of one token
    int64_t passes_ = 0;       // observed
    bool measured_ = false;
};

// What speculation did, over one or several sequences.
struct SpeculationCounts {
    int64_t drafted = 0, accepted = 0;  // tokens that were verified, and those of them that were right
    int64_t passes = 0;                 // with drafts
    int64_t plain_passes = 0;           // of one token
    double draft_seconds = 0;           // in the sources
    double verify_seconds = 0;          // in passes with drafts
    double plain_seconds = 0;           // in the others
    double saved_seconds = 0;  // plain steps for the same tokens would have taken so much longer; or < 0
    std::string failure = {};  // why a source gave up, or empty

    void add(const SpeculationCounts &other);
    SpeculationCounts since(const SpeculationCounts &before) const;
    double acceptance_rate() const { return drafted > 0 ? double(accepted) / double(drafted) : 0; }
    double mean_accepted() const { return passes > 0 ? double(accepted) / double(passes) : 0; }
    // Against plain steps, at their measured cost; 1 when nothing was computed.
    double speedup() const;
};

class Speculator {
  public:
    // `costs` is kept; without it every draft is as long as may be.
    Speculator(std::vector<std::unique_ptr<DraftSource>> sources, const SpeculationOptions &options,
               std::shared_ptr<SharedCosts> costs = nullptr);

    // Guesses what follows `text`, at most `most` tokens; other sequences bring `beside` tokens to the pass.
    // A source that fails is not asked again.
    void propose(std::span<const TokenId> text, int32_t most, int32_t beside, Sampler &sampler);
    std::span<const TokenId> drafts() const { return draft_.tokens; }

    // How long the pass took that computed the drafts, divided among its sequences. Comes before judge(),
    // which forgets them.
    void passed(double seconds);
    // The tokens that follow, at least one: drafts that are kept, and one more. `logits`: [1 +
    // drafts][vocab], behind the token sampled last and behind each draft; `text` ends with the drafts. Where
    // a row of a draft cannot be sampled from, the tokens end in front of it. Throws what Sampler::sample
    // does for the first row.
    std::vector<TokenId> judge(std::span<const float> logits, std::span<const TokenId> text,
                               Sampler &sampler);
    // The pass did not come about.
    void forget();

    SharedCosts *costs() const { return costs_.get(); }
    const SpeculationCounts &counts() const { return counts_; }

  private:
    struct Source {
        std::unique_ptr<DraftSource> drafts;  // null: it failed
        DraftLength length;
        DraftLength::Round round = {};  // of the pass at hand
        std::vector<float> probabilities = {};
    };
    struct Verdict {
        TokenId token;
        bool accepted;
    };
    bool ask(Source &source, std::span<const TokenId> text, int32_t most, Sampler &sampler);
    Verdict judge_one(size_t index, std::span<const float> row, std::span<const TokenId> history,
                      Sampler &sampler) const;
    void record(size_t accepted);

    SpeculationOptions options_;
    std::shared_ptr<SharedCosts> costs_;
    std::vector<Source> sources_;
    Draft draft_;
    int32_t beside_ = 0;
    double draft_seconds_ = 0, pass_seconds_ = 0;  // of the pass at hand
    SpeculationCounts counts_;
};

// One for each sequence.
using MakeSpeculator = std::function<std::unique_ptr<Speculator>()>;

// The continuation of a sequence in three steps, with drafts or (null) without.
//
// The token sampled last, which is not an end, is appended, and (where all before it is in the cache) guesses
// behind it: as many as fit the
// context, this one of `sequences` equal shares of a pass, and what is still wanted of the answer.
void append_with_drafts(Session &session, const Answer &answer, Speculator *speculator, Sampler &sampler,
                        int32_t sequences = 1);
// The tokens that follow, at least one. The session keeps all of them but the last.
std::vector<TokenId> take_tokens(Session &session, std::span<const float> logits, Speculator *speculator,
                                 Sampler &sampler);

}  // namespace runnel::decode
