#include "engine/decode/speculation/speculator.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <unordered_map>
#include <utility>

#include "engine/decode/error.h"
#include "engine/decode/next_token.h"
#include "engine/decode/random.h"
#include "engine/decode/speculation/model_draft.h"
#include "gguf/base/timer.h"
#include "kernels/backend.h"

namespace runnel::decode {
namespace {

using base::Clock, base::seconds_since;

// max(p - q, 0), normalized; p if that is 0 everywhere, which only rounding can cause.
Distribution residual(const Distribution &p, const Distribution &q) {
    std::unordered_map<TokenId, double> guessed;
    for (const TokenProb &c : q.candidates) guessed.emplace(c.id, c.probability);
    Distribution rest;
    double sum = 0;
    for (TokenProb c : p.candidates) {
        const auto found = guessed.find(c.id);
        c.probability -= found == guessed.end() ? 0 : found->second;
        if (c.probability <= 0) continue;
        sum += c.probability;
        rest.candidates.push_back(c);
    }
    if (rest.candidates.empty()) return p;
    for (TokenProb &c : rest.candidates) c.probability /= sum;
    return rest;
}

}  // namespace

void SharedCosts::measure(const Sequence &sequence, int32_t candidates, int64_t wanted,
                          const StopRequest *stop) {
    constexpr int64_t kEnough = 800;  // passes; measuring the first sizes takes the time of about 8
    constexpr double kShare = 0.01, kMost = 20;
    const bool unlimited = wanted == std::numeric_limits<int64_t>::max();
    const int64_t passes = passes_ + (unlimited ? 0 : wanted);
    if (measured_ || passes_ < 2 || passes < kEnough) return;
    measured_ = true;
    costs_ =
        measure_pass_costs(sequence, std::min(kMost, kShare * static_cast<double>(passes)), stop, candidates);
}

void SharedCosts::observe(const Pass &pass) {
    ++passes_;
    if (pass.tokens == 1) plain_.add(pass.seconds);
    costs_.observe(pass);
}

double SharedCosts::plain_step(int32_t sequences) const {
    if (sequences == 1 && !plain_.empty()) return plain_.value();
    return costs_.seconds(sequences) / sequences;
}

void SpeculationCounts::add(const SpeculationCounts &other) {
    drafted += other.drafted;
    accepted += other.accepted;
    passes += other.passes;
    plain_passes += other.plain_passes;
    draft_seconds += other.draft_seconds;
    verify_seconds += other.verify_seconds;
    plain_seconds += other.plain_seconds;
    branches += other.branches;
    branches_accepted += other.branches_accepted;
    saved_seconds += other.saved_seconds;
    if (failure.empty()) failure = other.failure;
    if (sources.empty()) sources = other.sources;
}

SpeculationCounts SpeculationCounts::since(const SpeculationCounts &before) const {
    return {drafted - before.drafted,
            accepted - before.accepted,
            passes - before.passes,
            plain_passes - before.plain_passes,
            draft_seconds - before.draft_seconds,
            verify_seconds - before.verify_seconds,
            plain_seconds - before.plain_seconds,
            branches - before.branches,
            branches_accepted - before.branches_accepted,
            saved_seconds - before.saved_seconds,
            failure,
            sources};
}

double SpeculationCounts::speedup() const {
    const double spent = draft_seconds + verify_seconds + plain_seconds;
    return spent > 0 ? (spent + saved_seconds) / spent : 1;
}

Speculator::Speculator(std::vector<std::unique_ptr<DraftSource>> sources, const SpeculationOptions &options,
                       std::shared_ptr<SharedCosts> costs)
    : options_(options), costs_(std::move(costs)) {
    options_.length.most = std::clamp(options_.length.most, 0, kMostDrafts);
    for (auto &source : sources) {
        counts_.sources += (counts_.sources.empty() ? "" : ", ") + std::string(source->name());
        sources_.push_back({std::move(source), DraftLength(options_.length)});
    }
}

void Speculator::add_first(std::unique_ptr<DraftSource> source) {
    sources_.insert(sources_.begin(), Source{std::move(source), DraftLength(options_.length)});
}

void Speculator::forget() {
    draft_ = {};
    offered_.clear();
    draft_seconds_ = pass_seconds_ = 0;
    for (Source &source : sources_) source.round = {};
}

void Speculator::propose(std::span<const TokenId> text, int32_t most, int32_t beside, Sampler &sampler,
                         const StopRequest *stop) {
    const Part part{this, text, most, beside, &sampler};
    propose_together({&part, 1}, stop);
}

void Speculator::give_up(Source &source, const std::string &why) {
    counts_.failure = why;
    source.drafts.reset();
}

// Cuts draft and branches before the first token that the constraint refuses.
static void cut(Draft &draft, Constraint &constraint, std::span<const TokenId> text) {
    const size_t length = constraint.allowed(text, draft.tokens);
    std::vector<TokenId> history;
    for (Branch &branch : draft.branches) {
        if (branch.shared > length) continue;
        history.assign(text.begin(), text.end());
        history.insert(history.end(), draft.tokens.begin(),
                       draft.tokens.begin() + static_cast<std::ptrdiff_t>(branch.shared));
        branch.tokens.resize(constraint.allowed(history, branch.tokens));
        branch.probabilities.resize(branch.tokens.size());
    }
    draft.tokens.resize(length);
    draft.probabilities.resize(length);
    if (!draft.distributions.empty()) draft.distributions.resize(length);
    std::erase_if(draft.branches, [&](const Branch &b) { return b.shared >= length || b.tokens.empty(); });
}

// Asks the draft sources of one sequence, one after the other.
class Speculator::Asking {
  public:
    Asking(const Part &part, const StopRequest *stop)
        : part_(part), stop_(stop), most_(std::min(part.most, part.speculator->options_.length.most)) {}

    // Asks the next source that may have a draft. False when none is left. If pending() is not null, run it.
    bool begin() {
        Speculator &s = *part_.speculator;
        for (pending_ = nullptr; next_ < s.sources_.size();) {
            Source &source = s.sources_[next_++];
            if (!source.drafts) continue;
            asked_ = s.costs_ ? source.length.ask(s.costs_->costs(), most_, part_.beside) : most_;
            if (asked_ <= 0) continue;
            seconds_ = 0;
            source_ = &source;
            guard([&] {
                source.drafts->follow(part_.cache, stop_);
                pending_ =
                    source.drafts->begin(part_.text, asked_, s.options_.least_probability, *part_.sampler);
            });
            return true;
        }
        return false;
    }
    PendingDraft *pending() const { return pending_; }
    void drove(double seconds) { seconds_ += seconds; }

    // True when there is something to verify.
    bool finish() {
        Draft draft;
        if (source_->drafts)
            guard([&] {
                draft = source_->drafts->finish();
                if (Constraint *constraint = part_.sampler->constraint(); constraint && !draft.tokens.empty())
                    cut(draft, *constraint, part_.text);
            });
        Speculator &s = *part_.speculator;
        s.draft_seconds_ += seconds_;
        assert(draft.tokens.size() <= static_cast<size_t>(asked_));
        source_->probabilities = draft.probabilities;
        source_->round = {.asked = asked_,
                          .probabilities = source_->probabilities,
                          .draft_seconds = seconds_,
                          .beside = part_.beside};
        return s.settle(*source_, std::move(draft), most_);
    }

  private:
    template <class F>
    void guard(F f) {
        const auto start = Clock::now();
        try {
            f();
        } catch (const DecodeError &error) {
            part_.speculator->give_up(*source_, error.what());
        } catch (const kernels::BackendError &error) {
            part_.speculator->give_up(*source_, error.what());
        }
        seconds_ += seconds_since(start);
    }

    Part part_;
    const StopRequest *stop_;
    int32_t most_;
    size_t next_ = 0;  // source
    Source *source_ = nullptr;
    PendingDraft *pending_ = nullptr;
    int32_t asked_ = 0;
    double seconds_ = 0;
};

void Speculator::propose_together(std::span<const Part> parts, const StopRequest *stop) {
    std::vector<Asking> open;
    for (const Part &part : parts) {
        part.speculator->forget();
        part.speculator->beside_ = part.beside;
        open.emplace_back(part, stop);
    }
    while (!open.empty()) {
        std::erase_if(open, [](Asking &asking) { return !asking.begin(); });
        std::vector<PendingDraft *> pending;
        for (const Asking &asking : open)
            if (asking.pending()) pending.push_back(asking.pending());
        const auto start = Clock::now();
        draft_together(pending, stop);
        const double each = seconds_since(start) / static_cast<double>(std::max<size_t>(1, pending.size()));
        for (Asking &asking : open)
            if (asking.pending()) asking.drove(each);
        std::erase_if(open, [](Asking &asking) { return asking.finish(); });
    }
}

// Keeps the part of a draft that is worth verifying. False when no part is.
bool Speculator::settle(Source &source, Draft draft, int32_t most) {
    assert(draft.tokens.size() == draft.probabilities.size());
    if (options_.rule == DraftRule::Rejection || options_.length.branches <= 1) draft.branches.clear();
    DraftShape wanted{static_cast<int32_t>(draft.tokens.size()),
                      std::vector<int32_t>(draft.branches.size(), kMostDrafts)};
    if (costs_ && options_.rule == DraftRule::Same)
        wanted = source.length.shape(costs_->costs(), draft.probabilities, draft.branches, beside_);
    if (wanted.length == 0) return false;
    shape(draft, wanted, most);
    source.round.verified = wanted.length;
    for (const Branch &branch : draft.branches)
        source.round.in_branches += static_cast<int32_t>(branch.tokens.size());
    draft_ = std::move(draft);
    return true;
}

// Cuts a draft to `shape`. The first tokens of all its branches stay in offered_. No branch reaches further
// than `most` tokens.
void Speculator::shape(Draft &draft, const DraftShape &shape, int32_t most) {
    std::vector<Branch> kept;
    int32_t guesses = shape.length;
    draft.tokens.resize(static_cast<size_t>(shape.length));
    for (size_t i = 0; i < draft.branches.size(); ++i) {
        Branch &branch = draft.branches[i];
        offered_.push_back({branch.shared, {branch.tokens[0]}, {branch.probabilities[0]}});
        const int32_t room = std::min(most - static_cast<int32_t>(branch.shared), kMostDrafts - guesses);
        const int32_t count = std::min({shape.branches[i], room, static_cast<int32_t>(branch.tokens.size())});
        const bool more = kept.size() + 1 < static_cast<size_t>(options_.length.branches);
        if (count <= 0 || !more || branch.shared >= draft.tokens.size()) continue;
        branch.tokens.resize(static_cast<size_t>(count));
        guesses += count;
        kept.push_back(std::move(branch));
    }
    draft.branches = std::move(kept);
}

void Speculator::append_to(ScheduledSequence &entry) const {
    entry.append_drafts(draft_.tokens);
    for (const Branch &branch : draft_.branches) entry.append_branch(branch.shared, branch.tokens);
}

Speculator::Verdict Speculator::verify_one(size_t index, const LogitRow &row,
                                           std::span<const TokenId> history, Sampler &sampler) const {
    if (options_.rule == DraftRule::Same || sampler.depends_on_draws() || index >= draft_.tokens.size())
        return {sample_next(row, history, sampler), true};
    const TokenId guess = draft_.tokens[index];
    const bool certain = index >= draft_.distributions.size();
    const Distribution of_guess = certain ? Distribution{{{guess, 0, 1}}} : draft_.distributions[index];
    const Distribution &wanted = distribution_of_next(row, history, sampler);
    const uint64_t seed = sampler.options().seed;
    const uint32_t position = sampler.position(history.size());
    const double chance = uniform(seed, sampler.stream(), position, Draw::Acceptance);
    if (chance * of_guess.probability_of(guess) < wanted.probability_of(guess)) return {guess, true};
    const double where = uniform(seed, sampler.stream(), position, Draw::Residual);
    return {residual(wanted, of_guess).pick(where), false};
}

namespace {

// One path down the tree: the draft, or a branch after the part of the draft that it shares.
class Path {
  public:
    // Precondition: a branch was computed.
    Path(const Draft &draft, const LogitRows &rows) : draft_(&draft), rows_(&rows) {}
    Path(const Draft &draft, const LogitRows &rows, const Branch &branch, const LogitRows &branch_rows)
        : draft_(&draft), rows_(&rows), branch_(&branch), branch_rows_(&branch_rows) {}

    size_t length() const {
        return branch_ ? branch_->shared + branch_->tokens.size() : draft_->tokens.size();
    }
    TokenId token(size_t i) const {
        return branch_ && i >= branch_->shared ? branch_->tokens[i - branch_->shared] : draft_->tokens[i];
    }
    // The row after the first n tokens of the path.
    LogitRow row(size_t n) const {
        const bool own = branch_ && n > branch_->shared;
        return own ? (*branch_rows_)[n - branch_->shared - 1] : (*rows_)[n];
    }

  private:
    const Draft *draft_;
    const LogitRows *rows_;
    const Branch *branch_ = nullptr;
    const LogitRows *branch_rows_ = nullptr;
};

// The text as far as it is verified. While drafts are right, it is a view of the sequence's tokens; only at
// the first wrong draft is the text, which may be long, copied.
class Known {
  public:
    // The last `drafts` of `tokens` are drafts.
    Known(std::span<const TokenId> tokens, size_t drafts)
        : tokens_(tokens), length_(tokens.size() - drafts) {}

    std::span<const TokenId> text() const { return copy_.empty() ? tokens_.first(length_) : copy_; }
    void add(TokenId token) {
        const bool as_drafted = length_ < tokens_.size() && tokens_[length_] == token;
        if (copy_.empty() && as_drafted) {
            ++length_;
            return;
        }
        if (copy_.empty())
            copy_.assign(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(length_));
        copy_.push_back(token);
    }

  private:
    std::span<const TokenId> tokens_;
    size_t length_;
    std::vector<TokenId> copy_;
};

}  // namespace

VerifyResult Speculator::verify(const ScheduledSequence &entry, const LogitRows &rows, Sampler &sampler) {
    const size_t drafts = draft_.tokens.size();
    std::vector<std::pair<Path, std::optional<size_t>>> paths{{Path(draft_, rows), std::nullopt}};
    for (size_t b = 0; b < draft_.branches.size(); ++b)
        if (const LogitRows &own = entry.branches()[b].rows; !own.empty())
            paths.push_back({Path(draft_, rows, draft_.branches[b], own), b});
    Known known(entry.tokens(), drafts);
    VerifyResult result;
    bool going = true;
    for (size_t n = 0;; ++n) try {
            const LogitRow row = paths.front().first.row(n);
            const Verdict verdict = verify_one(n, row, known.text(), sampler);
            result.tokens.push_back(verdict.token);
            result.rows.push_back(row);
            const auto ends = [&](const auto &path) {
                return n >= path.first.length() || path.first.token(n) != verdict.token;
            };
            going = verdict.accepted && !std::ranges::all_of(paths, ends);
            if (!going) break;
            std::erase_if(paths, ends);
            known.add(verdict.token);
        } catch (const DecodeError &) {
            if (n == 0) throw;
            break;  // the next pass, after the tokens so far, meets the same error and throws it
        }
    result.branch = paths.front().second;
    record(result, result.tokens.size() - (going ? 0 : 1));
    return result;
}

// The source's second choice at the place where its draft was wrong.
std::optional<DraftLength::Round::Second> Speculator::second_choice(const VerifyResult &result,
                                                                    size_t accepted) const {
    if (accepted >= draft_.tokens.size() || accepted >= result.tokens.size()) return std::nullopt;
    for (const Branch &branch : offered_)
        if (branch.shared == accepted)
            return DraftLength::Round::Second{branch.probabilities[0],
                                              branch.tokens[0] == result.tokens[accepted]};
    return std::nullopt;
}

// Counts the pass. Its saved_seconds are those of plain steps for the same tokens minus its own.
void Speculator::record(const VerifyResult &result, size_t accepted) {
    const bool plain = draft_.tokens.empty();
    const size_t of_draft = result.branch ? draft_.branches[*result.branch].shared : accepted;
    ++(plain ? counts_.plain_passes : counts_.passes);
    (plain ? counts_.plain_seconds : counts_.verify_seconds) += pass_seconds_;
    counts_.draft_seconds += draft_seconds_;
    counts_.drafted += static_cast<int64_t>(draft_.tokens.size());
    for (const Branch &branch : draft_.branches)
        counts_.drafted += static_cast<int64_t>(branch.tokens.size());
    counts_.accepted += static_cast<int64_t>(accepted);
    counts_.branches += static_cast<int64_t>(draft_.branches.size());
    counts_.branches_accepted += result.branch ? 1 : 0;
    if (logs_) {
        DraftPass pass{draft_.tokens,  result.tokens, accepted, std::nullopt, 0,
                       draft_seconds_, pass_seconds_};
        pass.guessed = static_cast<int64_t>(draft_.tokens.size());
        for (const Branch &branch : draft_.branches)
            pass.guessed += static_cast<int64_t>(branch.tokens.size());
        if (result.branch) pass.branch_after = of_draft;
        log_.push_back(std::move(pass));
    }
    if (costs_) {
        const PassCosts &costs = costs_->costs();
        const double step = costs_->plain_step(1 + beside_);
        if (!plain) counts_.saved_seconds += static_cast<double>(accepted + 1) * step - pass_seconds_;
        counts_.saved_seconds -= draft_seconds_;
        for (Source &source : sources_) {
            if (source.round.verified > 0) {
                source.round.accepted = static_cast<int32_t>(of_draft);
                source.round.from_branches = static_cast<int32_t>(accepted - of_draft);
                source.round.second = second_choice(result, of_draft);
            }
            source.length.record(costs, source.round);
        }
    }
    forget();
}

void Speculator::passed(double seconds) {
    pass_seconds_ = seconds;
}

void append_with_drafts(std::span<const Continuation> continuations, int32_t sequences,
                        const StopRequest *stop) {
    std::vector<Speculator::Part> parts;
    for (const Continuation &c : continuations) {
        ScheduledSequence &entry = *c.entry;
        const bool behind = entry.sequence().pending() > 0;
        if (c.speculator && c.speculator->costs() && !behind)
            c.speculator->costs()->measure(entry.sequence(), entry.wanted_candidates(), c.remaining, stop);
        entry.append({&c.last, 1});
        if (!c.speculator) continue;
        c.speculator->forget();
        if (behind) continue;
        const int64_t share = entry.executor().batch_size() / std::max(1, sequences);
        const int64_t most =
            std::min({share - 1, static_cast<int64_t>(entry.sequence().free_cells()), c.remaining - 1});
        parts.push_back({c.speculator, entry.tokens(),
                         static_cast<int32_t>(std::clamp<int64_t>(most, 0, kMostDrafts)), sequences - 1,
                         c.sampler, &entry.sequence().cache()});
    }
    Speculator::propose_together(parts, stop);
    for (const Continuation &c : continuations)
        if (c.speculator) c.speculator->append_to(*c.entry);
}

VerifyResult take_tokens(ScheduledSequence &entry, const LogitRows &rows, Speculator *speculator,
                         Sampler &sampler) {
    if (!speculator) return {{sample_next(rows[0], entry.tokens(), sampler)}, {rows[0]}, {}};
    const size_t known = entry.tokens().size() - speculator->drafts().size();
    VerifyResult result = speculator->verify(entry, rows, sampler);
    if (result.branch) entry.choose_branch(*result.branch);
    entry.truncate(known + result.tokens.size() - 1);
    return result;
}

}  // namespace runnel::decode
