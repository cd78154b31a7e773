// The split patterns, from the models' own tokenizer.json (pre_tokenizer), and the names GGUF files use for
// them.
#include "engine/text/pre_tokenizer.h"

namespace runnel::text {
namespace {

// Where tokenizer.json says ByteLevel(use_regex), it is this one.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Latin, Greek, Cyrillic, ... letters: the list that DeepSeek's tokenizer.json spells out.
constexpr std::string_view kDeepseekLetters =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ)"
    R"(Ὗ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ)"
    R"(𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";

constexpr std::string_view kDeepseekHan = R"([一-龥ࠀ-一가-퟿]+)";

const std::vector<PreTokenizerKind> &kinds() {
    static const std::vector<PreTokenizerKind> all = {
        {{"default"}, {R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", R"([0-9][0-9][0-9])"}},
        {{"gpt-2", "phi-2", "mpt", "olmo", "jais"}, {kGpt2}},
        {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"},
         {kLlama3},
         true,
         true},
        {{"dbrx", "smaug-bpe"}, {kLlama3}},
        {{"glm4", "chatglm-bpe"}, {kLlama3}, false, false, false},
        {{"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"}, {kQwen2}},
        {{"starcoder", "smollm", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
         {R"(\p{N})", kGpt2}},
        {{"deepseek-llm"},
         // The run must start the piece or follow a non-space, which is no change to what `\s+$` matches but
         // keeps a long run of blanks in mid-text from being tried from each of its places.
         {R"([\r\n])", kDeepseekLetters, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"((?<!\s)\s+$)", kDeepseekHan,
          R"(\p{N}+)"}},
        {{"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekHan, R"(\p{N})"}},
        {{"deepseek-v3"},
         {R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)",
          R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
          R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
        {{"falcon"}, {R"([\p{P}$+<=>^~|`]+)", kGpt2, R"([0-9][0-9][0-9])"}},
        {{"tekken"}, {kTekken}, true, true},
        {{"gpt-4o", "llama4"}, {kGpt4o}},
    };
    return all;
}

}  // namespace

const PreTokenizerKind *find_pre_tokenizer(std::string_view name) {
    for (const PreTokenizerKind &kind : kinds())
        for (const std::string_view known : kind.names)
            if (known == name) return &kind;
    return nullptr;
}

std::string pre_tokenizer_names() {
    std::string list;
    for (const PreTokenizerKind &kind : kinds())
        for (const std::string_view name : kind.names) list.append(list.empty() ? "" : ", ").append(name);
    return list;
}

}  // namespace runnel::text
