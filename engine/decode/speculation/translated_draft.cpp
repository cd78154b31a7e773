#include "engine/decode/speculation/translated_draft.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode/speculation/model_draft.h"

namespace runnel::decode {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The target's options, for the tokens of the draft model.
Sampler sampler_of(const Sampler &target, const DraftVocabulary &vocabulary) {
    SamplingOptions options = target.options();
    options.logit_bias.clear();
    for (const auto &[id, bias] : target.options().logit_bias)
        if (const TokenId there = vocabulary.to_draft(id); there != text::kNoToken)
            options.logit_bias.emplace_back(there, bias);
    for (TokenId id = 0; id < vocabulary.draft_rows(); ++id)
        if (!vocabulary.draft().is_sampleable(id)) options.logit_bias.emplace_back(id, kNever);
    return Sampler(std::move(options), vocabulary.draft_rows());
}

Draft draft_alone(DraftSource &source, std::span<const TokenId> text, int32_t most, float least_probability,
                  Sampler &sampler) {
    if (PendingDraft *draft = source.begin(text, most, least_probability, sampler))
        draft_together({&draft, 1}, nullptr);
    return source.finish();
}

class MappedDraft final : public DraftSource {
  public:
    MappedDraft(std::unique_ptr<DraftSource> source, const DraftVocabulary &vocabulary)
        : source_(std::move(source)), vocabulary_(&vocabulary) {}

    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override {
        return draft_alone(*this, text, most, least_probability, sampler);
    }
    PendingDraft *begin(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) override {
        if (!sampler_) sampler_ = sampler_of(sampler, *vocabulary_);
        sampler_->set_stream(sampler.stream());
        text_.clear();
        for (const TokenId id : text) text_.push_back(vocabulary_->readable(id));
        return source_->begin(text_, most, least_probability, *sampler_);
    }
    Draft finish() override {
        Draft draft = source_->finish();
        size_t count = 0;
        for (; count < draft.tokens.size(); ++count) {
            const TokenId here = vocabulary_->to_target(draft.tokens[count]);
            if (here == text::kNoToken) break;
            draft.tokens[count] = here;
        }
        draft.tokens.resize(count);
        draft.probabilities.resize(count);
        std::erase_if(draft.branches, [&](Branch &branch) {
            for (TokenId &id : branch.tokens) id = vocabulary_->to_target(id);
            const bool whole = std::ranges::find(branch.tokens, text::kNoToken) == branch.tokens.end();
            return !whole || branch.shared >= count;
        });
        if (draft.distributions.size() > count) draft.distributions.resize(count);
        for (Distribution &distribution : draft.distributions) translate(distribution);
        return draft;
    }
    std::string_view name() const override { return source_->name(); }

  private:
    // Restricts the distribution to the tokens that have a counterpart.
    void translate(Distribution &distribution) const {
        double sum = 0;
        std::erase_if(distribution.candidates, [&](TokenProb &candidate) {
            candidate.id = vocabulary_->to_target(candidate.id);
            if (candidate.id != text::kNoToken) sum += candidate.probability;
            return candidate.id == text::kNoToken;
        });
        for (TokenProb &candidate : distribution.candidates) candidate.probability /= sum;
    }

    std::unique_ptr<DraftSource> source_;
    const DraftVocabulary *vocabulary_;
    std::optional<Sampler> sampler_;
    std::vector<TokenId> text_;
};

// ---

// A growing text in the tokens of another vocabulary.
class Recut {
  public:
    explicit Recut(const DraftVocabulary &vocabulary) : vocabulary_(&vocabulary) {}

    // The draft model's tokens for `text`. Valid until the next call.
    std::span<const TokenId> tokens(std::span<const TokenId> text) {
        if (!begins_with_settled(text)) {
            settled_.clear();
            tokens_.clear();
            settled_tokens_ = 0;
        }
        tokens_.resize(settled_tokens_);
        if (text.size() - settled_.size() > kMostOpen) settle(text);
        append(text.subspan(settled_.size()));
        return tokens_;
    }

  private:
    static constexpr size_t kMostOpen = 96, kStaysOpen = 32, kCompared = 256;

    bool begins_with_settled(std::span<const TokenId> text) const {
        const size_t compared = std::min(settled_.size(), kCompared), from = settled_.size() - compared;
        return text.size() >= settled_.size() &&
               std::equal(settled_.begin() + static_cast<std::ptrdiff_t>(from), settled_.end(),
                          text.begin() + static_cast<std::ptrdiff_t>(from));
    }
    // Settles the text up to a word that begins before the last tokens: it is not tokenized again.
    void settle(std::span<const TokenId> text) {
        size_t end = text.size() - kStaysOpen;
        while (end > settled_.size() && !begins_word(text[end])) --end;
        if (end == settled_.size()) return;
        append(text.subspan(settled_.size(), end - settled_.size()));
        settled_.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end));
        settled_tokens_ = tokens_.size();
    }
    bool begins_word(TokenId id) const {
        const std::string bytes = vocabulary_->target().decode(id);
        return bytes.empty() || bytes[0] == ' ' || bytes[0] == '\n';
    }
    void append(std::span<const TokenId> text) {
        const text::Tokenizer &target = vocabulary_->target(), &draft = vocabulary_->draft();
        if (tokens_.empty() && draft.adds_bos() && draft.bos() && *draft.bos() < vocabulary_->draft_rows() &&
            (text.empty() || text[0] != target.bos()))
            tokens_.push_back(*draft.bos());
        std::string bytes;
        const auto flush = [&] {
            if (bytes.empty()) return;
            for (const TokenId id : draft.encode(bytes, {.add_special = false, .continues = true}))
                if (id < vocabulary_->draft_rows()) tokens_.push_back(id);
            bytes.clear();
        };
        for (const TokenId id : text) {
            if (!target.is_control(id)) {
                bytes += target.decode(id);
                continue;
            }
            flush();
            if (const TokenId there = vocabulary_->to_draft(id); there != text::kNoToken)
                tokens_.push_back(there);
        }
        flush();
    }

    const DraftVocabulary *vocabulary_;
    std::vector<TokenId> settled_;  // the target's tokens of the settled text
    std::vector<TokenId> tokens_;   // the draft model's tokens of the text
    size_t settled_tokens_ = 0;     // how many of tokens_ are settled
};

class BridgedDraft final : public DraftSource {
  public:
    BridgedDraft(std::unique_ptr<DraftSource> source, const DraftVocabulary &vocabulary)
        : source_(std::move(source)), vocabulary_(&vocabulary), recut_(vocabulary) {}

    Draft draft(std::span<const TokenId> text, int32_t most, float least_probability,
                Sampler &sampler) override {
        return draft_alone(*this, text, most, least_probability, sampler);
    }
    PendingDraft *begin(std::span<const TokenId> text, int32_t most, float least_probability,
                        Sampler &sampler) override {
        begun_ = false;
        if (most <= 0) return nullptr;
        if (!sampler_) sampler_ = sampler_of(sampler, *vocabulary_);
        sampler_->set_stream(sampler.stream());
        const std::span<const TokenId> there = recut_.tokens(text);
        if (there.empty()) return nullptr;
        begun_ = true;
        most_ = static_cast<size_t>(most);
        text_.assign(text.begin(), text.end());
        // One more than requested, since the last word is dropped.
        return source_->begin(there, most + 1, least_probability, *sampler_);
    }
    Draft finish() override {
        if (!std::exchange(begun_, false)) return {};
        Draft draft = proposal(text_, source_->finish());
        if (draft.tokens.size() > most_) {
            draft.tokens.resize(most_);
            draft.probabilities.resize(most_);
        }
        return draft;
    }
    std::string_view name() const override { return source_->name(); }

  private:
    struct Text {
        std::string bytes;
        std::vector<size_t> ends;          // end of every token in `bytes`
        TokenId control = text::kNoToken;  // the target's control token after `bytes`, if any
        size_t read = 0;                   // drafted tokens that were read
    };
    // The text of a draft, up to its first control token.
    Text text_of(const Draft &foreign) const {
        Text out;
        for (const TokenId id : foreign.tokens) {
            ++out.read;
            if (vocabulary_->draft().is_control(id)) {
                out.control = vocabulary_->to_target(id);
                break;
            }
            out.bytes += vocabulary_->draft().decode(id);
            out.ends.push_back(out.bytes.size());
        }
        return out;
    }

    Draft proposal(std::span<const TokenId> text, const Draft &foreign) const {
        const Text drafted = text_of(foreign);
        Draft draft;
        draft.tokens = continuation(text, drafted.bytes);
        const bool ended = drafted.control != text::kNoToken;
        if (!ended) cut_last_word(draft.tokens);
        size_t at = 0, used = 0;
        for (const TokenId id : draft.tokens) {
            at += vocabulary_->target().decode(id).size();
            float probability = 1;
            for (; used < drafted.ends.size() && drafted.ends[used] <= at; ++used)
                probability *= foreign.probabilities[used];
            draft.probabilities.push_back(probability);
        }
        if (ended) {
            draft.tokens.push_back(drafted.control);
            draft.probabilities.push_back(foreign.probabilities[drafted.read - 1]);
        }
        return draft;
    }

    // The target's tokens for `bytes` after `text`: tokenized together with the last tokens of `text`, if
    // these come out unchanged.
    std::vector<TokenId> continuation(std::span<const TokenId> text, const std::string &bytes) const {
        constexpr size_t kContext = 12;
        const text::Tokenizer &target = vocabulary_->target();
        constexpr text::EncodeOptions kPlain{.add_special = false, .continues = true};
        size_t first = text.size();
        while (first > 0 && text.size() - first < kContext && !target.is_control(text[first - 1])) --first;
        const std::span<const TokenId> context = text.subspan(first);
        std::string whole;
        for (const TokenId id : context) whole += target.decode(id);
        std::vector<TokenId> ids = target.encode(whole + bytes, kPlain);
        if (ids.size() < context.size() || !std::equal(context.begin(), context.end(), ids.begin()))
            return target.encode(bytes, kPlain);
        ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(context.size()));
        return ids;
    }

    void cut_last_word(std::vector<TokenId> &ids) const {
        for (size_t last = ids.size(); last-- > 1;) {
            const std::string bytes = vocabulary_->target().decode(ids[last]);
            if (bytes.empty() || (bytes[0] != ' ' && bytes[0] != '\n')) continue;
            ids.resize(last);
            return;
        }
        if (ids.size() > 1) ids.pop_back();  // a language without blanks, or a single long word
    }

    std::unique_ptr<DraftSource> source_;
    const DraftVocabulary *vocabulary_;
    std::optional<Sampler> sampler_;
    Recut recut_;
    bool begun_ = false;
    size_t most_ = 0;
    std::vector<TokenId> text_;
};

}  // namespace

std::unique_ptr<DraftSource> through_ids(std::unique_ptr<DraftSource> source,
                                         const DraftVocabulary &vocabulary) {
    return std::make_unique<MappedDraft>(std::move(source), vocabulary);
}

std::unique_ptr<DraftSource> through_text(std::unique_ptr<DraftSource> source,
                                          const DraftVocabulary &vocabulary) {
    return std::make_unique<BridgedDraft>(std::move(source), vocabulary);
}

std::unique_ptr<DraftSource> translated(std::unique_ptr<DraftSource> source,
                                        const DraftVocabulary &vocabulary) {
    switch (vocabulary.kind()) {
        case DraftVocabulary::Kind::Mapped:
            return through_ids(std::move(source), vocabulary);
        case DraftVocabulary::Kind::Other:
            return through_text(std::move(source), vocabulary);
        case DraftVocabulary::Kind::Same:
            break;
    }
    return source;
}

}  // namespace runnel::decode
