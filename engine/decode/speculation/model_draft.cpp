#include "engine/decode/speculation/model_draft.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/decode/error.h"
#include "engine/decode/scheduler.h"

namespace runnel::decode {
namespace {

// The softmax of a whole row, or of a row known by its largest logits and its sum.
class Softmax {
  public:
    // Logits far below the largest are left out: an estimate does not need them.
    explicit Softmax(std::span<const float> logits)
        : logits_(logits), top_(*std::max_element(logits.begin(), logits.end())) {
        constexpr float kFar = 16;
        for (const float l : logits)
            if (l > top_ - kFar) sum_ += std::exp(l - top_);
    }
    explicit Softmax(const LogitRow &row)
        : largest_(row.largest()), top_(largest_.front().logit), sum_(row.sum()) {}

    double of_best() const { return double{1 / sum_}; }
    // The probability of a token whose logit is known.
    double of(TokenId id) const { return double{std::exp(logit(id) - top_) / sum_}; }

  private:
    float logit(TokenId id) const {
        if (!logits_.empty()) return logits_[static_cast<size_t>(id)];
        return std::ranges::find(largest_, id, &kernels::TopLogit::token)->logit;
    }

    std::span<const float> logits_;
    std::span<const kernels::TopLogit> largest_;
    float top_, sum_ = 0;
};

double largest(const Distribution &distribution) {
    double most = 0;
    for (const TokenProb &c : distribution.candidates) most = std::max(most, c.probability);
    return most;
}

}  // namespace

// Makes the sequence hold `text`; tokens are due then. False when there is no room for a draft.
bool ModelDraft::read(std::span<const TokenId> text) {
    const auto context = static_cast<size_t>(entry_.executor().context());
    const size_t wanted = static_cast<size_t>(most_);
    if (context < 2 * wanted + 2) return false;
    if (skipped_ >= text.size() || text.size() + wanted <= context) skipped_ = 0;
    if (text.size() - skipped_ + wanted > context) skipped_ = text.size() - context / 2;
    readable_.assign(text.begin() + static_cast<std::ptrdiff_t>(skipped_), text.end());
    for (TokenId &id : readable_)
        if (id < 0 || id >= entry_.executor().vocab()) id = 0;
    const size_t known = entry_.sequence().reuse(readable_);
    append(std::span(readable_).subspan(known));
    return true;
}

// Requests what add_token() needs of the row: for a greedy token also its probability and the runner-up.
void ModelDraft::append(std::span<const TokenId> tokens) {
    constexpr int32_t kGreedy = 8;  // leaves a runner-up even if some are forbidden
    const bool greedy = !(sampler_->options().temperature > 0);
    const int32_t most = entry_.executor().most_candidates(), needed = sampler_->candidates_needed(most);
    const bool enough = needed > 0 && (!greedy || (most > 1 && entry_.executor().vocab() > 1));
    RowMask mask;
    if (sampler_->constraint())
        mask = [this](std::span<const TokenId>, std::span<uint64_t> bits) {
            // (The draft model may have fewer tokens than the model whose grammar it is.)
            if (!sampler_->mask(history_, bits)) return false;
            const auto vocab = static_cast<size_t>(entry_.executor().vocab());
            if (vocab % 64 != 0) bits.back() &= (uint64_t{1} << vocab % 64) - 1;
            return std::ranges::any_of(bits, [](uint64_t word) { return word != 0; });
        };
    entry_.want_candidates(!enough  ? 0
                           : greedy ? std::min(most, std::max(needed, kGreedy))
                                    : needed,
                           std::move(mask));
    entry_.append(tokens);
}

// The full row, padded to the sampler's vocabulary. Tokens that a grammar refuses have no chance, so that the
// probabilities of drafts are those of a row that the device masked.
std::span<const float> ModelDraft::whole(const LogitRow &row) {
    constexpr float kHopeless = -1e30f;  // but finite
    const std::span<const float> own = row.whole_or_read(read_);
    const auto vocab = static_cast<size_t>(sampler_->vocab());
    std::vector<uint64_t> mask(sampler_->constraint() ? (vocab + 63) / 64 : 0);
    const bool is_masked = sampler_->mask(history_, mask);
    if (own.size() >= vocab && !is_masked) return own;
    padded_.assign(std::max(vocab, own.size()), kHopeless);
    for (size_t id = 0; id < own.size(); ++id)
        if (!is_masked || !std::isfinite(own[id]) || (id < vocab && (mask[id / 64] >> id % 64 & 1) != 0))
            padded_[id] = own[id];
    return padded_;
}

// False when the draft ends before this token.
bool ModelDraft::add_token() {
    const LogitRow row = entry_.rows()[0];
    const Distribution *some =
        row.largest().empty() ? nullptr : sampler_->distribution(row.largest(), history_, row.masked());
    const std::span<const float> logits = some ? std::span<const float>() : whole(row);
    const Distribution &distribution = some ? *some : sampler_->distribution(logits, history_);
    const TokenId id = sampler_->draw(history_.size());
    const bool greedy = !(sampler_->options().temperature > 0);
    std::optional<Softmax> all;
    if (greedy) all = some ? Softmax(row) : Softmax(logits);
    double probability = 1;
    if (greedy)
        probability = all->of_best();
    else
        probability = with_distributions_ ? largest(distribution) : distribution.probability_of(id);
    if (static_cast<float>(probability) < least_probability_) return false;
    if (with_distributions_) {
        draft_.distributions.push_back(distribution);
    } else if (const TokenId other = sampler_->second(history_.size(), id); other != text::kNoToken) {
        const double alone = greedy ? all->of(other) : distribution.probability_of(other);
        const double if_wrong = std::min(1.0, alone / std::max(1 - probability, 1e-6));
        if (static_cast<float>(alone) >= least_probability_)
            draft_.branches.push_back({draft_.tokens.size(), {other}, {static_cast<float>(if_wrong)}});
    }
    draft_.tokens.push_back(id);
    draft_.probabilities.push_back(static_cast<float>(probability));
    history_.push_back(id);
    return true;
}

void ModelDraft::advance() {
    const bool going = add_token() && draft_.tokens.size() < static_cast<size_t>(most_);
    // Drops branches without a drafted token that they are an alternative to.
    std::erase_if(draft_.branches, [&](const Branch &b) { return b.shared >= draft_.tokens.size(); });
    if (!going || draft_.tokens.back() >= entry_.executor().vocab()) return;
    append({&draft_.tokens.back(), 1});
}

void ModelDraft::stop(bool forget) {
    entry_.truncate(forget ? 0 : static_cast<size_t>(entry_.sequence().cache().length()));
}

void ModelDraft::fail(std::exception_ptr error) {
    stop(false);
    failure_ = std::move(error);
}

Draft ModelDraft::finish() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return std::move(draft_);
}

ModelDraft *ModelDraft::begin(std::span<const TokenId> text, int32_t most, float least_probability,
                              Sampler &sampler) {
    draft_ = {};
    failure_ = nullptr;
    most_ = most;
    least_probability_ = least_probability;
    sampler_ = &sampler;
    history_.assign(text.begin(), text.end());
    if (most <= 0 || text.empty() || !read(text)) return nullptr;
    return this;
}

Draft ModelDraft::draft(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) {
    if (ModelDraft *self = begin(text, most, least_probability, sampler)) draft_together({&self, 1}, nullptr);
    return finish();
}

namespace {

// Drafts the next token, or ends the draft with the error if its row cannot be sampled from.
void advance(ModelDraft &draft) {
    try {
        draft.advance();
    } catch (const DecodeError &) {
        draft.fail(std::current_exception());
    } catch (const kernels::BackendError &) {
        draft.fail(std::current_exception());
    }
}

// Completes drafts that all have the same executor.
void drive(std::span<ModelDraft *const> drafts, const StopRequest *stop) {
    Scheduler scheduler(drafts[0]->entry().executor(), {.parallel = static_cast<int32_t>(drafts.size())});
    std::unordered_map<const ScheduledSequence *, ModelDraft *> of;
    for (ModelDraft *draft : drafts) {
        of[&draft->entry()] = draft;
        scheduler.add(draft->entry());
    }
    const auto due = [](ModelDraft *draft) { return draft->entry().due(); };
    const auto end_all = [&](auto &&end) {
        for (ModelDraft *draft : drafts)
            if (due(draft)) end(*draft);
    };
    const auto fail = [](ModelDraft &draft) { draft.fail(std::current_exception()); };
    try {
        while (std::ranges::any_of(drafts, due)) {
            if (!scheduler.step(stop)) return end_all([](ModelDraft &draft) { draft.stop(false); });
            for (ScheduledSequence *entry : scheduler.ready()) advance(*of.at(entry));
        }
    } catch (const DecodeError &error) {
        if (error.kind != DecodeError::Kind::OutOfMemory) return end_all(fail);
        end_all([](ModelDraft &draft) { draft.stop(true); });  // others may need their blocks
    } catch (const kernels::BackendError &) {
        end_all(fail);
    }
}

}  // namespace

void draft_together(std::span<ModelDraft *const> drafts, const StopRequest *stop) {
    std::vector<ModelDraft *> open(drafts.begin(), drafts.end());
    while (!open.empty()) {
        const Executor *first = &open.front()->entry().executor();
        const auto others = std::stable_partition(
            open.begin(), open.end(), [&](ModelDraft *draft) { return &draft->entry().executor() == first; });
        drive({open.begin(), others}, stop);
        open.erase(open.begin(), others);
    }
}

}  // namespace runnel::decode
