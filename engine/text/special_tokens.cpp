#include "engine/text/special_tokens.h"

#include <algorithm>
#include <string>

#include "engine/text/metadata.h"

namespace runnel::text {
namespace {

const std::string kPrefix = "tokenizer.ggml.";

// Ends of a turn; the first one found becomes the end-of-turn token.
constexpr std::string_view kTurnEnds[] = {
    "<|eot_id|>", "<|im_end|>",    "<|end|>", "<end_of_turn>",
    "<turn|>",    "<|endoftext|>", "<EOT>",   "<｜end▁of▁sentence｜>",
};
// Ends of a text or of an answer in every model that has them.
constexpr std::string_view kOtherEnds[] = {
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "<|eom_id|>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<|eot|>",
    "<|eom|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "[|endofturn|]",
    "<|endofturn|>",
    "<seed:eos>",
    "<|role_end|>",
    "<|tool_response>",
};
// Fill-in-the-middle: padding and the start of another file end a completion; the
// rest are control tokens only.
constexpr std::string_view kFimEnds[] = {
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>",   "<PAD>",        "<|fim_repo|>", "<|repo_name|>",
    "<fim-repo>",  "<REPO>",    "<repo_name>", "<|file_sep|>", "<file_sep>",
};
constexpr std::string_view kFimOthers[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>",  "<SUF>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>",   "<MID>",
};

class Collector {
  public:
    Collector(const gguf::File &file, Vocabulary &vocabulary) : file_(file), vocabulary_(vocabulary) {}

    TokenId by_key(const std::string &name) const {
        return get_token_id(file_, kPrefix + name, static_cast<size_t>(vocabulary_.size()))
            .value_or(kNoToken);
    }
    TokenId by_text(std::string_view text) const { return vocabulary_.find(text); }
    // Makes the token of this text a control token. In some vocabularies "</s>" or "<PRE>" is an ordinary
    // word: a normal token becomes a control token only if ordinary text never contains it.
    TokenId make_control(std::string_view text) {
        const TokenId id = by_text(text);
        if (id == kNoToken || (vocabulary_.type(id) == TokenType::Normal && !is_unmistakable(text)))
            return kNoToken;
        vocabulary_.set_type(id, TokenType::Control);
        return id;
    }
    void add_end(TokenId id) {
        if (id != kNoToken) ends.push_back(id);
    }
    std::vector<TokenId> ends;

  private:
    static bool is_unmistakable(std::string_view text) {
        return text.starts_with("<|") || text.starts_with("<｜") || text.starts_with("<end_of_");
    }
    const gguf::File &file_;
    Vocabulary &vocabulary_;
};

// "<|end|>" ends a message but not the answer if an answer consists of several messages (gpt-oss: analysis,
// then final; also solar).
bool end_is_inside(const Collector &tokens) {
    const auto has = [&](std::string_view text) { return tokens.by_text(text) != kNoToken; };
    return (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));
}

// GLM's answers end at the beginning of the next turn.
void collect_glm_ends(Collector &tokens) {
    if (tokens.by_text("[gMASK]") == kNoToken || tokens.by_text("<|observation|>") == kNoToken) return;
    for (const std::string_view text : {"<|user|>", "<|observation|>"})
        tokens.add_end(tokens.make_control(text));
}

void collect_ends(Collector &tokens) {
    for (const char *name :
         {"eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"})
        tokens.add_end(tokens.by_key(name));
    for (const std::string_view text : kTurnEnds) tokens.add_end(tokens.make_control(text));
    // In Gemma's vocabularies, which have <eos>, </s> is the HTML tag that ends struck-out text.
    const bool has_eos = tokens.by_text("<eos>") != kNoToken;
    for (const std::string_view text : kOtherEnds)
        if (text != "</s>" || !has_eos) tokens.add_end(tokens.make_control(text));
    collect_glm_ends(tokens);
    for (const std::string_view text : kFimEnds) tokens.add_end(tokens.make_control(text));
    for (const std::string_view text : kFimOthers) tokens.make_control(text);
    if (end_is_inside(tokens)) std::erase(tokens.ends, tokens.by_text("<|end|>"));
}

}  // namespace

SpecialTokens SpecialTokens::load(const gguf::File &file, Vocabulary &vocabulary,
                                  const PreTokenizerKind *kind, bool default_ids) {
    Collector tokens(file, vocabulary);
    SpecialTokens special;
    // Files of SentencePiece models may omit these keys and mean SentencePiece's default ids. (For "gpt2",
    // llama.cpp assumes 11, which is right for Falcon only.)
    const auto by_key = [&](const std::string &name, TokenId sentencepiece) {
        if (file.find(kPrefix + name)) return tokens.by_key(name);
        return default_ids && vocabulary.contains(sentencepiece) ? sentencepiece : kNoToken;
    };
    special.bos = kind && !kind->has_bos ? kNoToken : by_key("bos_token_id", 1);
    special.eos = by_key("eos_token_id", 2);
    special.unknown = by_key("unknown_token_id", 0);
    special.eot = tokens.by_key("eot_token_id");
    for (const std::string_view text : kTurnEnds)
        if (special.eot == kNoToken) special.eot = tokens.by_text(text);

    collect_ends(tokens);
    tokens.add_end(special.eos);
    std::sort(tokens.ends.begin(), tokens.ends.end());
    tokens.ends.erase(std::unique(tokens.ends.begin(), tokens.ends.end()), tokens.ends.end());
    special.end_of_generation = tokens.ends;

    const bool adds_bos = kind ? kind->adds_bos : true;
    special.add_bos = get_bool(file, kPrefix + "add_bos_token").value_or(adds_bos) && special.bos != kNoToken;
    special.add_eos = get_bool(file, kPrefix + "add_eos_token").value_or(false) && special.eos != kNoToken;
    return special;
}

}  // namespace runnel::text
