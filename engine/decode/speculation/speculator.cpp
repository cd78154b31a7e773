#include "engine/decode/speculation/speculator.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <limits>
#include <unordered_map>
#include <utility>

#include "engine/decode/error.h"
#include "engine/decode/random.h"
#include "kernels/backend.h"

namespace runnel::decode {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// max(p - q, 0), normalised; p where nothing is left of it, which only rounding can bring about.
Distribution residual(const Distribution &p, const Distribution &q) {
    std::unordered_map<TokenId, double> guessed;
    for (const Candidate &c : q.candidates) guessed.emplace(c.id, c.probability);
    Distribution rest;
    double sum = 0;
    for (Candidate c : p.candidates) {
        const auto found = guessed.find(c.id);
        c.probability -= found == guessed.end() ? 0 : found->second;
        if (c.probability <= 0) continue;
        sum += c.probability;
        rest.candidates.push_back(c);
    }
    if (rest.candidates.empty()) return p;
    for (Candidate &c : rest.candidates) c.probability /= sum;
    return rest;
}

}  // namespace

void SharedCosts::measure(const Session &session, int64_t wanted) {
    constexpr int64_t kEnough = 800;  // passes, of which measuring the first sizes takes some 8
    constexpr double kShare = 0.01, kMost = 20;
    const bool unlimited = wanted == std::numeric_limits<int64_t>::max();
    const int64_t passes = passes_ + (unlimited ? 0 : wanted);
    if (measured_ || passes_ < 2 || passes < kEnough) return;
    measured_ = true;
    costs_ = measure_pass_costs(session, std::min(kMost, kShare * static_cast<double>(passes)));
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
    saved_seconds += other.saved_seconds;
    if (failure.empty()) failure = other.failure;
}

SpeculationCounts SpeculationCounts::since(const SpeculationCounts &before) const {
    return {drafted - before.drafted,
            accepted - before.accepted,
            passes - before.passes,
            plain_passes - before.plain_passes,
            draft_seconds - before.draft_seconds,
            verify_seconds - before.verify_seconds,
            plain_seconds - before.plain_seconds,
            saved_seconds - before.saved_seconds,
            failure};
}

double SpeculationCounts::speedup() const {
    const double spent = draft_seconds + verify_seconds + plain_seconds;
    return spent > 0 ? (spent + saved_seconds) / spent : 1;
}

Speculator::Speculator(std::vector<std::unique_ptr<DraftSource>> sources, const SpeculationOptions &options,
                       std::shared_ptr<SharedCosts> costs)
    : options_(options), costs_(std::move(costs)) {
    options_.length.most = std::clamp(options_.length.most, 0, kMostDrafts);
    for (auto &source : sources) sources_.push_back({std::move(source), DraftLength(options_.length)});
}

void Speculator::forget() {
    draft_ = {};
    draft_seconds_ = pass_seconds_ = 0;
    for (Source &source : sources_) source.round = {};
}

void Speculator::propose(std::span<const TokenId> text, int32_t most, int32_t beside, Sampler &sampler) {
    forget();
    beside_ = beside;
    for (Source &source : sources_)
        if (source.drafts && ask(source, text, std::min(most, options_.length.most), sampler)) return;
}

// False when the source has nothing worth a pass.
bool Speculator::ask(Source &source, std::span<const TokenId> text, int32_t most, Sampler &sampler) {
    const int32_t asked = costs_ ? source.length.ask(costs_->costs(), most, beside_) : most;
    if (asked <= 0) return false;
    const auto start = Clock::now();
    Draft draft;
    try {
        draft = source.drafts->draft(text, asked, options_.least_probability, sampler);
    } catch (const DecodeError &error) {
        counts_.failure = error.what();
        source.drafts.reset();
    } catch (const kernels::BackendError &error) {
        counts_.failure = error.what();
        source.drafts.reset();
    }
    const double seconds = seconds_since(start);
    draft_seconds_ += seconds;
    assert(draft.tokens.size() <= static_cast<size_t>(asked));
    assert(draft.tokens.size() == draft.probabilities.size());
    source.probabilities = draft.probabilities;
    source.round = {
        .asked = asked, .probabilities = source.probabilities, .draft_seconds = seconds, .beside = beside_};
    size_t kept = draft.tokens.size();
    if (costs_ && options_.rule == DraftRule::Same)
        kept = static_cast<size_t>(source.length.keep(costs_->costs(), draft.probabilities, beside_));
    if (kept == 0) return false;
    source.round.verified = static_cast<int32_t>(kept);
    draft.tokens.resize(kept);
    draft_ = std::move(draft);
    return true;
}

Speculator::Verdict Speculator::judge_one(size_t index, std::span<const float> row,
                                          std::span<const TokenId> history, Sampler &sampler) const {
    const TokenId guess = index < draft_.tokens.size() ? draft_.tokens[index] : -1;
    if (guess < 0 || options_.rule == DraftRule::Same) {
        const TokenId token = sampler.sample(row, history);
        return {token, token == guess};
    }
    const bool certain = index >= draft_.distributions.size();
    const Distribution of_guess = certain ? Distribution{{{guess, 0, 1}}} : draft_.distributions[index];
    const Distribution &wanted = sampler.distribution(row, history);
    const uint64_t seed = sampler.options().seed;
    const auto position = static_cast<uint32_t>(history.size());
    const double chance = uniform(seed, sampler.stream(), position, Draw::Acceptance);
    if (chance * of_guess.probability_of(guess) < wanted.probability_of(guess)) return {guess, true};
    const double where = uniform(seed, sampler.stream(), position, Draw::Residual);
    return {residual(wanted, of_guess).pick(where), false};
}

std::vector<TokenId> Speculator::judge(std::span<const float> logits, std::span<const TokenId> text,
                                       Sampler &sampler) {
    const size_t drafts = draft_.tokens.size(), vocab = logits.size() / (drafts + 1);
    std::vector<TokenId> tokens;
    bool going = true;
    for (size_t i = 0; i <= drafts && going; ++i) try {
            const Verdict verdict =
                judge_one(i, logits.subspan(i * vocab, vocab), text.first(text.size() - drafts + i), sampler);
            tokens.push_back(verdict.token);
            going = verdict.accepted;
        } catch (const DecodeError &) {
            if (i == 0) throw;
            break;  // the next pass meets it again, behind the tokens that came before
        }
    const size_t accepted = tokens.size() - (going ? 0 : 1);
    record(accepted);
    return tokens;
}

// A pass with drafts took what plain steps would for the tokens that it brought, or more, or less.
void Speculator::record(size_t accepted) {
    const bool plain = draft_.tokens.empty();
    ++(plain ? counts_.plain_passes : counts_.passes);
    (plain ? counts_.plain_seconds : counts_.verify_seconds) += pass_seconds_;
    counts_.draft_seconds += draft_seconds_;
    counts_.drafted += static_cast<int64_t>(draft_.tokens.size());
    counts_.accepted += static_cast<int64_t>(accepted);
    if (costs_) {
        const PassCosts &costs = costs_->costs();
        const double step = costs_->plain_step(1 + beside_);
        if (!plain) counts_.saved_seconds += static_cast<double>(accepted + 1) * step - pass_seconds_;
        counts_.saved_seconds -= draft_seconds_;
        for (Source &source : sources_) {
            source.round.accepted = source.round.verified > 0 ? static_cast<int32_t>(accepted) : 0;
            source.length.record(costs, source.round);
        }
    }
    forget();
}

void Speculator::passed(double seconds) {
    pass_seconds_ = seconds;
}

void append_with_drafts(Session &session, const Answer &answer, Speculator *speculator, Sampler &sampler,
                        int32_t sequences) {
    const bool behind = session.pending() > 0;
    if (speculator && speculator->costs() && !behind)
        speculator->costs()->measure(session, answer.remaining());
    session.append({&answer.tokens().back(), 1});
    if (!speculator) return;
    if (behind) return speculator->forget();
    const int64_t share = session.executor().batch_size() / std::max(1, sequences);
    const int64_t most = std::min({share - 1, static_cast<int64_t>(session.room()), answer.remaining() - 1});
    speculator->propose(session.tokens(), static_cast<int32_t>(std::clamp<int64_t>(most, 0, kMostDrafts)),
                        sequences - 1, sampler);
    session.append_drafts(speculator->drafts());
}

std::vector<TokenId> take_tokens(Session &session, std::span<const float> logits, Speculator *speculator,
                                 Sampler &sampler) {
    if (!speculator) return {sampler.sample(logits, session.tokens())};
    const size_t known = session.tokens().size() - speculator->drafts().size();
    std::vector<TokenId> tokens = speculator->judge(logits, session.tokens(), sampler);
    session.truncate(known + tokens.size() - 1);
    return tokens;
}

}  // namespace runnel::decode
