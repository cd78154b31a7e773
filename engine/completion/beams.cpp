#include "engine/completion/beams.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>

#include "engine/decode/error.h"

namespace runnel::completion {

using decode::DecodeError;
using decode::ScheduledSequence;

namespace {

bool better(const Hypothesis &a, const Hypothesis &b) {
    return a.score > b.score;
}

}  // namespace

BeamSearch::BeamSearch(decode::Executor &executor, decode::Scheduler &scheduler, Vocabulary vocabulary,
                       BeamOptions options, std::span<const TokenId> prompt)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), scheduler_(&scheduler) {
    assert(options_.beams >= 1 && !prompt.empty());
    if (options_.constraint) options_.constraint->begin(prompt.size());
    live_.push_back({ScheduledSequence(executor), Answer(vocabulary_, options_.limits), options_.constraint});
    live_.back().session.append(prompt);
    scheduler_->add(live_.back().session);
}

BeamSearch::~BeamSearch() {
    for (Beam &beam : live_) scheduler_->remove(beam.session);
}

int64_t BeamSearch::computed() const {
    int64_t computed = computed_;
    for (const Beam &beam : live_) computed += beam.session.computed();
    return computed;
}

// The text that ends an answer, with the shortest valid ending if requested.
std::string BeamSearch::end_text(Answer &answer, FinishReason reason, const Beam &parent,
                                 bool &closed) const {
    std::string ending;
    if (parent.constraint && options_.close && reason == FinishReason::Length)
        ending = parent.constraint->ending(answer.tokens());
    closed = !ending.empty();
    return answer.end(reason, ending);
}

// `parent`: the beam whose constraint checks the tokens.
Hypothesis BeamSearch::hypothesis(std::string text, const Answer &answer, const Beam &parent,
                                  double log_probability, size_t length, bool closed) const {
    const double score = length > 0 ? log_probability / static_cast<double>(length) : 0;
    Hypothesis found{std::move(text), answer.tokens(), answer.reason(), log_probability, score};
    if (!parent.constraint || !parent.constraint->has_grammar()) return found;
    found.complete = closed || parent.constraint->complete(found.tokens);
    return found;
}

// The 2 * beams best tokens after a beam; further ones cannot be among the best of all beams.
void BeamSearch::look_ahead(Beam &beam) {
    const std::span<const float> logits = beam.session.logits();
    logits_.assign(logits.begin(), logits.end());
    for (const auto &[id, bias] : options_.logit_bias) logits_[static_cast<size_t>(id)] += bias;
    const double top = *std::max_element(logits_.begin(), logits_.end());
    double sum = 0;
    for (const float l : logits_) sum += std::exp(double{l} - top);
    if (!std::isfinite(sum))
        throw DecodeError(DecodeError::Kind::Failed,
                          "the model computed numbers that are not finite (NaN or infinity), or every token "
                          "is forbidden");
    const double log_sum = top + std::log(sum);
    const grammar::Bits *allowed = beam.constraint ? &beam.constraint->mask(beam.session.tokens()) : nullptr;
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < static_cast<TokenId>(logits_.size()); ++id)
        if (!allowed || grammar::has_bit(*allowed, id)) ids.push_back(id);
    const auto by_logit = [&](TokenId a, TokenId b) {
        const float la = logits_[static_cast<size_t>(a)], lb = logits_[static_cast<size_t>(b)];
        return la != lb ? la > lb : a < b;
    };
    const size_t most = std::min(ids.size(), 2 * static_cast<size_t>(options_.beams));
    std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(most), ids.end(), by_logit);
    for (size_t i = 0; i < most; ++i) {
        const double l = logits_[static_cast<size_t>(ids[i])];
        if (std::isfinite(l)) beam.next.emplace_back(beam.log_probability + l - log_sum, ids[i]);
    }
}

std::vector<BeamSearch::Continuation> BeamSearch::continuations() const {
    std::vector<Continuation> all;
    size_t index = 0;
    for (const Beam &beam : live_) {
        for (const auto &[log_probability, id] : beam.next) all.push_back({log_probability, index, id});
        ++index;
    }
    std::sort(all.begin(), all.end(), [](const Continuation &a, const Continuation &b) {
        if (a.log_probability != b.log_probability) return a.log_probability > b.log_probability;
        return a.beam != b.beam ? a.beam < b.beam : a.id < b.id;
    });
    if (all.size() > 2 * static_cast<size_t>(options_.beams))
        all.resize(2 * static_cast<size_t>(options_.beams));
    return all;
}

// Makes the best continuations the live beams. False when none is left, or none can become better.
bool BeamSearch::follow(const std::vector<Continuation> &all) {
    std::vector<const Beam *> parents;
    for (const Beam &beam : live_) parents.push_back(&beam);
    const size_t most = static_cast<size_t>(options_.beams), length = parents[0]->answer.tokens().size() + 1;
    std::list<Beam> next;
    for (const Continuation &c : all) {
        if (next.size() == most) break;
        const Beam &parent = *parents[c.beam];
        Answer answer = parent.answer;
        std::string text = parent.text + answer.take(c.id);
        bool closed = false;
        if (!answer.over() && (answer.complete() || parent.session.sequence().free_cells() == 0))
            text += end_text(answer, FinishReason::Length, parent, closed);
        if (answer.over())
            finished_.push_back(
                hypothesis(std::move(text), answer, parent, c.log_probability, length, closed));
        else
            next.push_back({ScheduledSequence(parent.session.sequence().fork()), std::move(answer),
                            parent.constraint, std::move(text), c.log_probability});
    }
    std::stable_sort(finished_.begin(), finished_.end(), better);
    if (finished_.size() > most) finished_.resize(most);
    for (Beam &beam : live_) {
        computed_ += beam.session.computed();
        scheduler_->remove(beam.session);
    }
    live_ = std::move(next);
    if (live_.empty()) return false;
    const double best = live_.front().log_probability / static_cast<double>(length);
    return finished_.size() < most || best > finished_.back().score;
}

bool BeamSearch::advance() {
    if (over_) return false;
    for (Beam &beam : live_)
        if (beam.session.has_logits()) look_ahead(beam);
    if (std::any_of(live_.begin(), live_.end(), [](const Beam &b) { return b.session.due(); })) return true;
    started_ = true;
    over_ = live_.front().answer.complete() || !follow(continuations());  // complete: max_tokens is 0
    if (over_) return false;
    for (Beam &beam : live_) {
        beam.session.append({&beam.answer.tokens().back(), 1});
        scheduler_->add(beam.session);
    }
    return true;
}

std::vector<Hypothesis> BeamSearch::results(FinishReason reason) const {
    std::vector<Hypothesis> all = finished_;
    const bool cut = !over_ || finished_.empty();
    for (const Beam &beam : live_) {
        if (!cut) break;
        Answer answer = beam.answer;
        bool closed = false;
        std::string text = beam.text + end_text(answer, over_ ? FinishReason::Length : reason, beam, closed);
        all.push_back(
            hypothesis(std::move(text), answer, beam, beam.log_probability, answer.tokens().size(), closed));
    }
    std::stable_sort(all.begin(), all.end(), better);
    if (all.size() > static_cast<size_t>(options_.beams)) all.resize(static_cast<size_t>(options_.beams));
    return all;
}

}  // namespace runnel::completion
