#include "engine/text/tokenizer.h"

#include <algorithm>
#include <variant>

#include "engine/text/byte_pair.h"
#include "engine/text/charsmap.h"
#include "engine/text/longest_match.h"
#include "engine/text/metadata.h"
#include "engine/text/replace.h"
#include "engine/text/sentencepiece.h"
#include "engine/text/special_matcher.h"
#include "engine/text/special_tokens.h"
#include "engine/text/unigram.h"
#include "gguf/printable.h"

namespace runnel::text {
namespace {

// Blanks become three bytes, so that offsets fit in 32 bits.
constexpr size_t kMaxTextBytes = size_t{512} << 20;

// Text that is still to be encoded (id == kNoToken), or a token recognized as a whole.
struct Fragment {
    std::string_view text;
    TokenId id = kNoToken;
};

std::string lower(std::string_view text) {
    std::string result(text);
    for (char &c : result)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return result;
}

bool is_ascii_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

// Phi-3 declares its added tokens with "rstrip": they include the white space after them. GGUF has no key for
// that, so, as in llama.cpp, the model's name decides.
bool swallows_space(const gguf::File &file) {
    const std::string name = lower(get_string(file, "general.name").value_or(""));
    return name.find("phi-3") != name.npos || name.find("phi3") != name.npos;
}

}  // namespace

struct Tokenizer::Impl {
    Impl(const gguf::File &file, Conventions conventions);

    std::vector<Fragment> partition(std::string_view text,
                                    std::span<const SpecialMatcher::Stretch> special) const;
    std::vector<TokenId> encode(std::string_view text, std::span<const SpecialMatcher::Stretch> special,
                                const EncodeOptions &options) const;
    void encode(const SentencePieceEncoder &encoder, const std::vector<Fragment> &fragments, bool continues,
                std::vector<TokenId> &output) const;
    void encode(const BytePairEncoder &encoder, const std::vector<Fragment> &fragments, bool continues,
                std::vector<TokenId> &output) const;
    void encode(const UnigramEncoder &encoder, const std::vector<Fragment> &fragments, bool continues,
                std::vector<TokenId> &output) const;
    void encode(const LongestMatchEncoder &encoder, const std::vector<Fragment> &fragments, bool continues,
                std::vector<TokenId> &output) const;
    bool is_sentencepiece() const { return std::holds_alternative<SentencePieceEncoder>(*encoder_); }
    bool is_byte_pair() const { return std::holds_alternative<BytePairEncoder>(*encoder_); }
    // Whether the vocabulary spells bytes with escapes.
    bool has_escapes() const { return std::holds_alternative<LongestMatchEncoder>(*encoder_); }

    std::string name, note;
    Vocabulary vocabulary;
    SpecialTokens special;
    std::vector<TokenId> suppressed;  // ascending; tokens that must never be sampled
    bool add_space_prefix = false;
    bool remove_extra_blanks = false;

  private:
    void start_sentencepiece(const gguf::File &file, bool has_merges);
    void append_blank_marks(std::string_view part, bool first, bool last, std::string &text) const;
    void load_matcher(const gguf::File &file);

    std::optional<std::variant<SentencePieceEncoder, BytePairEncoder, UnigramEncoder, LongestMatchEncoder>>
        encoder_;
    std::optional<Charsmap> charsmap_;
    SpecialMatcher matcher_;
    std::vector<bool>
        swallows_space_;  // by id: the token includes the white space after it; empty for most models

    friend class Tokenizer;
};

namespace {

// An unknown pre-tokenizer is replaced by a guess, and a note says so.
const PreTokenizerKind &find_kind(std::string_view pre, std::string &note) {
    if (const PreTokenizerKind *kind = find_pre_tokenizer(pre)) return *kind;
    const std::string_view nearest = nearest_pre_tokenizer(pre);
    note = "tokenizer.ggml.pre: pre-tokenizer " + gguf::quoted(pre) +
           " is unknown: text is split into words as for '" + std::string(nearest) +
           "', and the model may understand it less well";
    return *find_pre_tokenizer(nearest);
}

// For files without tokenizer.ggml.pre. GPT-NeoX (Pythia) has one tokenizer, called "olmo"; for other
// architectures it is unknown.
std::string_view default_pre_tokenizer(const gguf::File &file) {
    return get_string(file, "general.architecture") == "gptneox" ? "olmo" : "default";
}

}  // namespace

Tokenizer::Impl::Impl(const gguf::File &file, Conventions conventions) {
    const auto model = get_string(file, "tokenizer.ggml.model");
    if (!model) fail("tokenizer.ggml.model", "is missing: the file has no tokenizer");
    const std::string_view pre = get_string(file, "tokenizer.ggml.pre").value_or(default_pre_tokenizer(file));
    const PreTokenizerKind *kind = nullptr;
    if (*model == "gpt2") {
        kind = &find_kind(pre, note);
    } else if (*model != "llama" && *model != "gemma4" && *model != "plamo2" && *model != "rwkv") {
        fail("tokenizer.ggml.model", "tokenizer " + gguf::quoted(*model) +
                                         " is not supported (supported: llama, gpt2, gemma4, plamo2, rwkv)");
    }
    name = std::string(*model) + "/" + (kind ? std::string(pre) : "default");
    vocabulary = Vocabulary::load(file);
    const bool is_rwkv = *model == "rwkv";
    special = SpecialTokens::load(file, vocabulary, kind, !kind && !is_rwkv);
    for (const int64_t id : get_ints(file, "tokenizer.ggml.suppress_tokens"))
        if (id >= 0 && id < vocabulary.size()) suppressed.push_back(static_cast<TokenId>(id));
    std::sort(suppressed.begin(), suppressed.end());
    if (kind) {
        // StarCoder's unknown token is <|endoftext|>, but no text may produce that token.
        const bool is_end = std::binary_search(special.end_of_generation.begin(),
                                               special.end_of_generation.end(), special.unknown);
        encoder_.emplace(std::in_place_type<BytePairEncoder>, file, vocabulary, *kind, conventions,
                         is_end ? kNoToken : special.unknown);
    } else if (*model == "plamo2" || is_rwkv) {
        // Their converters write no key for adding a BOS; llama.cpp adds none.
        special.add_bos = special.add_bos && get_bool(file, "tokenizer.ggml.add_bos_token").has_value();
        if (is_rwkv)
            encoder_.emplace(std::in_place_type<LongestMatchEncoder>, vocabulary);
        else
            encoder_.emplace(std::in_place_type<UnigramEncoder>, vocabulary);
    } else {
        start_sentencepiece(file, *model == "gemma4");
    }
    load_matcher(file);
}

void Tokenizer::Impl::start_sentencepiece(const gguf::File &file, bool has_merges) {
    std::optional<MergeTable> merges;
    if (has_merges) merges = MergeTable::load(file, vocabulary);
    encoder_.emplace(std::in_place_type<SentencePieceEncoder>, vocabulary, special.unknown,
                     std::move(merges));
    add_space_prefix = get_bool(file, "tokenizer.ggml.add_space_prefix").value_or(!has_merges);
    remove_extra_blanks = get_bool(file, "tokenizer.ggml.remove_extra_whitespaces").value_or(false);
    charsmap_ = Charsmap::load(file);
}

void Tokenizer::Impl::load_matcher(const gguf::File &file) {
    const bool swallow = swallows_space(file);
    if (swallow) swallows_space_.resize(static_cast<size_t>(vocabulary.size()));
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
        const TokenType type = vocabulary.type(id);
        if (type != TokenType::Control && type != TokenType::UserDefined && type != TokenType::Unknown)
            continue;
        const std::string_view piece = vocabulary.piece(id);
        // A blank mark in a SentencePiece text is a blank (see encode), and also in its pieces.
        matcher_.add(is_sentencepiece() ? replace_all(piece, kBlankMark, " ") : std::string(piece), id,
                     type == TokenType::UserDefined);
        if (swallow && piece != "<unk>" && piece != "<s>" && piece != "<|endoftext|>")
            swallows_space_[static_cast<size_t>(id)] = true;
    }
}

std::vector<Fragment> Tokenizer::Impl::partition(
    std::string_view text, std::span<const SpecialMatcher::Stretch> special_text) const {
    std::vector<Fragment> fragments;
    size_t at = 0;
    while (at < text.size()) {
        const SpecialMatcher::Match match = matcher_.find(text, at, special_text);
        const size_t end = match.id == kNoToken ? text.size() : match.begin;
        if (end > at) fragments.push_back({text.substr(at, end - at)});
        at = end;
        if (match.id == kNoToken) continue;
        fragments.push_back({{}, match.id});
        at += match.bytes;
        if (!swallows_space_.empty() && swallows_space_[static_cast<size_t>(match.id)])
            while (at < text.size() && is_ascii_space(text[at])) ++at;
    }
    return fragments;
}

// Replaces blanks by marks; if remove_extra_blanks, runs by one mark, and blanks at the ends by nothing.
void Tokenizer::Impl::append_blank_marks(std::string_view part, bool first, bool last,
                                         std::string &text) const {
    if (!remove_extra_blanks) {
        text += replace_all(part, " ", kBlankMark);
        return;
    }
    if (first) part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    if (last) part = part.substr(0, part.find_last_not_of(' ') + 1);
    char before = 0;
    for (const char c : part) {
        if (c != ' ')
            text += c;
        else if (before != ' ')
            text += kBlankMark;
        before = c;
    }
}

void Tokenizer::Impl::encode(const SentencePieceEncoder &encoder, const std::vector<Fragment> &fragments,
                             bool continues, std::vector<TokenId> &output) const {
    // The session remembers words by their address, so the texts with replaced blanks must not move.
    std::vector<std::string> texts;
    texts.reserve(fragments.size());
    size_t bytes = 0;
    bool after_special = !continues;
    for (const Fragment &fragment : fragments) {
        const bool is_text = fragment.id == kNoToken;
        std::string text(is_text && after_special && add_space_prefix ? kBlankMark : "");
        const bool first = &fragment == &fragments.front() && !continues,
                   last = &fragment == &fragments.back();
        const size_t mark = text.size();
        if (is_text && charsmap_)
            append_blank_marks(charsmap_->normalize(fragment.text, kMaxTextBytes - 1), first, last, text);
        else if (is_text)
            append_blank_marks(fragment.text, first, last, text);
        if (remove_extra_blanks && text.size() == mark) text.clear();
        bytes += text.size();
        texts.push_back(std::move(text));
        after_special = !is_text;
    }
    SentencePieceEncoder::Session session(bytes);
    for (size_t i = 0; i < fragments.size(); ++i) {
        if (fragments[i].id == kNoToken) {
            encoder.encode(vocabulary, texts[i], session, output);
        } else {
            output.push_back(fragments[i].id);
        }
    }
}

void Tokenizer::Impl::encode(const BytePairEncoder &encoder, const std::vector<Fragment> &fragments, bool,
                             std::vector<TokenId> &output) const {
    size_t bytes = 0;
    for (const Fragment &fragment : fragments) bytes += fragment.text.size();
    BytePairEncoder::Session session(bytes);
    for (const Fragment &fragment : fragments) {
        if (fragment.id == kNoToken) {
            encoder.encode(vocabulary, fragment.text, session, output);
        } else {
            output.push_back(fragment.id);
        }
    }
}

void Tokenizer::Impl::encode(const UnigramEncoder &encoder, const std::vector<Fragment> &fragments, bool,
                             std::vector<TokenId> &output) const {
    for (const Fragment &fragment : fragments) {
        if (fragment.id == kNoToken)
            encoder.encode(vocabulary, fragment.text, output);
        else
            output.push_back(fragment.id);
    }
}

void Tokenizer::Impl::encode(const LongestMatchEncoder &encoder, const std::vector<Fragment> &fragments, bool,
                             std::vector<TokenId> &output) const {
    for (const Fragment &fragment : fragments) {
        if (fragment.id == kNoToken)
            encoder.encode(fragment.text, output);
        else
            output.push_back(fragment.id);
    }
}

Tokenizer::Tokenizer() = default;
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer &&) noexcept = default;
Tokenizer &Tokenizer::operator=(Tokenizer &&) noexcept = default;

Tokenizer Tokenizer::load(const gguf::File &file, Conventions conventions) {
    Tokenizer tokenizer;
    tokenizer.impl_ = std::make_unique<Impl>(file, conventions);
    return tokenizer;
}

namespace {

// `text` with a blank for every blank mark; `moved`: the stretches at their new offsets.
std::string with_blanks(std::string_view text, std::span<const SpecialMatcher::Stretch> stretches,
                        std::vector<SpecialMatcher::Stretch> &moved) {
    std::string blanks;
    size_t at = 0;
    const auto reach = [&](size_t end) {
        while (at < end) {
            const bool mark = text.substr(at).starts_with(kBlankMark);
            blanks += mark ? ' ' : text[at];
            at += mark ? kBlankMark.size() : 1;
        }
        return blanks.size();
    };
    for (const auto &[begin, end] : stretches) {
        const size_t first = reach(begin);
        moved.push_back({first, reach(end)});
    }
    reach(text.size());
    return blanks;
}

}  // namespace

std::vector<TokenId> Tokenizer::Impl::encode(std::string_view text,
                                             std::span<const SpecialMatcher::Stretch> special_text,
                                             const EncodeOptions &options) const {
    if (text.size() >= kMaxTextBytes) throw TokenizerError("the text has 512 MiB or more: split it");
    if (is_sentencepiece() && !remove_extra_blanks && text.find(kBlankMark) != text.npos) {
        std::vector<SpecialMatcher::Stretch> moved;
        const std::string blanks = with_blanks(text, special_text, moved);
        return encode(blanks, moved, options);
    }
    const auto fragments = partition(text, special_text);
    std::vector<TokenId> ids;
    const auto add_unless = [&](const Fragment *fragment, TokenId id) {
        if (!fragment || fragment->id != id) ids.push_back(id);
    };
    if (options.add_special && special.add_bos)
        add_unless(fragments.empty() ? nullptr : &fragments.front(), special.bos);
    std::visit([&](const auto &encoder) { encode(encoder, fragments, options.continues, ids); }, *encoder_);
    if (options.add_special && special.add_eos)
        add_unless(fragments.empty() ? nullptr : &fragments.back(), special.eos);
    return ids;
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
    const SpecialMatcher::Stretch whole{0, options.parse_special ? text.size() : 0};
    return impl_->encode(text, {&whole, 1}, options);
}

std::vector<TokenId> Tokenizer::encode(std::span<const Segment> segments, EncodeOptions options) const {
    std::string text;
    std::vector<SpecialMatcher::Stretch> special;
    for (const Segment &segment : segments) {
        const size_t begin = text.size();
        text += segment.text;
        if (!segment.special) continue;
        // Adjacent stretches are joined: a token may extend across them.
        if (!special.empty() && special.back().end == begin) {
            special.back().end = text.size();
        } else {
            special.push_back({begin, text.size()});
        }
    }
    return impl_->encode(text, special, options);
}

std::string Tokenizer::decode(TokenId id, bool with_special) const {
    const Vocabulary &vocabulary = impl_->vocabulary;
    if (!vocabulary.contains(id)) return {};
    const std::string_view text = vocabulary.piece(id);
    switch (vocabulary.type(id)) {
        case TokenType::Normal:
            if (impl_->is_byte_pair()) return BytePairEncoder::bytes_of(text);
            if (impl_->has_escapes()) return LongestMatchEncoder::bytes_of(text);
            [[fallthrough]];
        case TokenType::UserDefined:
            return impl_->is_sentencepiece() ? replace_all(text, kBlankMark, " ") : std::string(text);
        case TokenType::Control:
        case TokenType::Unknown:
            return with_special ? std::string(text) : std::string();
        case TokenType::Byte:
            if (const auto byte = vocabulary.byte_value(id)) return std::string(1, static_cast<char>(*byte));
            return {};
        case TokenType::Unused:
            return {};
    }
    return {};
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool with_special) const {
    std::string text;
    bool at_start = impl_->add_space_prefix;
    for (const TokenId id : ids) {
        std::string bytes = decode(id, with_special);
        if (at_start && !is_control(id) && !bytes.empty()) {
            if (bytes[0] == ' ' && impl_->vocabulary.type(id) == TokenType::Normal) bytes.erase(0, 1);
            at_start = false;
        }
        text += bytes;
    }
    return text;
}

std::string_view Tokenizer::piece(TokenId id) const {
    return impl_->vocabulary.contains(id) ? impl_->vocabulary.piece(id) : std::string_view();
}

int32_t Tokenizer::size() const {
    return impl_->vocabulary.size();
}

bool Tokenizer::is_control(TokenId id) const {
    if (!impl_->vocabulary.contains(id)) return false;
    const TokenType type = impl_->vocabulary.type(id);
    return type == TokenType::Control || type == TokenType::Unknown;
}

bool Tokenizer::is_end_of_generation(TokenId id) const {
    const auto &ends = impl_->special.end_of_generation;
    return std::binary_search(ends.begin(), ends.end(), id);
}

bool Tokenizer::is_sampleable(TokenId id) const {
    const auto &never = impl_->suppressed;
    return impl_->vocabulary.contains(id) && impl_->vocabulary.type(id) != TokenType::Unused &&
           !std::binary_search(never.begin(), never.end(), id);
}

namespace {
std::optional<TokenId> as_optional(TokenId id) {
    return id == kNoToken ? std::nullopt : std::optional(id);
}
}  // namespace

std::optional<TokenId> Tokenizer::bos() const {
    return as_optional(impl_->special.bos);
}
std::optional<TokenId> Tokenizer::eos() const {
    return as_optional(impl_->special.eos);
}
std::optional<TokenId> Tokenizer::eot() const {
    return as_optional(impl_->special.eot);
}
bool Tokenizer::adds_bos() const {
    return impl_->special.add_bos;
}

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
    return as_optional(impl_->vocabulary.find(text));
}

const std::string &Tokenizer::model_name() const {
    return impl_->name;
}

const std::string &Tokenizer::note() const {
    return impl_->note;
}

}  // namespace runnel::text
