// The split patterns, from the models' own tokenizers, and the names GGUF files use for them.
//
// ByteLevel(use_regex), Digits and Punctuation of a tokenizer.json are written here as equivalent patterns.
// Patterns are as published, except where PCRE2 would need memory or time quadratic in a run of digits or
// letters (a text may be one such run); these changes are noted.
#include <algorithm>

#include "engine/text/pre_tokenizer.h"

namespace runnel::text {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Digits(individual_digits): every number character on its own.
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";

constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kJais2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S))"
    R"(|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s)";

constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Qwen 2's pattern without English contractions.
constexpr std::string_view kUfakzeka =
    R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kMiniCpm5 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n])"
    R"(|\s+(?!\S)|\s+)";

constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A word continues across single blanks. Possessive here, greedy as published: nothing after the word can fail.
constexpr std::string_view kExaoneMoe =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";

constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Letters only: combining marks end a word.
constexpr std::string_view kLlamaTekken =
    R"([^\r\n\p{L}\p{N}]?[^\P{L}a-z]*[^\P{L}A-Z]+|[^\r\n\p{L}\p{N}]?[^\P{L}a-z]+[^\P{L}A-Z]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kLlamaGpt4o =
    R"([^\r\n\p{L}\p{N}]?[^\P{L}a-z]*[^\P{L}A-Z]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[^\P{L}a-z]+[^\P{L}A-Z]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::string_view kYoutuScripts =
    R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A})"
    R"(\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+)";

constexpr std::string_view kYoutu =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Kimi's classes are [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] and the like. PCRE2 has no class
// intersection, so they are written as complements; and its \p{Han} alone would include the script extensions.
constexpr std::string_view kKimi =
    R"(\p{sc:Han}+)"
    R"(|[^\r\n\p{L}\p{N}]?[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]*[^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[^\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]+[^\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}\p{sc:Han}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Words end at white space and at the punctuation of several scripts (Bloom and its successors).
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";

// Groups of three digits, aligned to the right end of the number. The published pattern (SuperBPE) is
// (?=(\d{3})+(?!\d)), a look-ahead from every position to the end of the number. Here only the first group
// looks ahead and the others follow it, so a number that mixes decimal digits with other numbers ("345½") is
// split at more positions.
constexpr std::string_view kGroupsOfThree = R"((?<!\d)\d{1,3}(?=(?:\d{3})*+(?!\d))|\G(?<=\d)\d{3})";
// Likewise for the published pattern of Tiny Aya, \d{1,3}(?=(?:\d{3})*\b).
constexpr std::string_view kGroupsOfThreeInWords = R"((?<!\d)\d{1,3}(?=(?:\d{3})*+\b)|\G(?<=\d)\d{3})";

// AFMoE: numbers in chunks of 510 digits aligned to the right, then in groups of three. Here too, only the
// first chunk looks ahead.
constexpr std::string_view kAfmoeChunks =
    R"(\G(?<=\p{Nd})\p{Nd}{510}|(?<!\p{Nd})\p{Nd}{1,510}(?=(?>\p{Nd}{510})*+(?:\P{Nd}|$)))";
constexpr std::string_view kAfmoeLead = R"(\A\p{Nd}{1,2}(?=(?:\p{Nd}{3})++\z))";
constexpr std::string_view kAfmoeThrees = R"(\A\p{Nd}{3}|\G\p{Nd}{3})";
constexpr std::string_view kAfmoeScripts =
    R"([\x{4E00}-\x{9FFF}\x{3040}-\x{30FF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}]+)"
    R"(|[\x{E00}-\x{E7F}]+|[\x{E80}-\x{EFF}]+|[\x{1780}-\x{17FF}]+)"
    R"(|[\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}]+|[\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)";
// All scripts in one class, and all numbers as well.
constexpr std::string_view kLlamaAfmoeDigits =
    R"((?<!\p{N})\p{N}{1,3}(?=(?:\p{N}{3})*+(?!\p{N}))|\G(?<=\p{N})\p{N}{3})";
constexpr std::string_view kLlamaAfmoeScripts =
    R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{E40}-\x{E7F})"
    R"(\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)";

// The letters that have a case (Latin, Greek, Cyrillic, ...), as DeepSeek's tokenizer.json lists them.
constexpr std::string_view kDeepseekLetters =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C})"
    R"(\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5})"
    R"(\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B})"
    R"(\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45})"
    R"(\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4})"
    R"(\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB})"
    R"(\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115})"
    R"(\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139})"
    R"(\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";

constexpr std::string_view kDeepseekSigns =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";

// CJK ideographs, everything from U+0800 (Samaritan) up to them, and Hangul.
constexpr std::string_view kDeepseekHan = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";

constexpr std::string_view kDeepseek3Han = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// In this pattern "~" is neither a symbol nor punctuation.
constexpr std::string_view kLlamaDeepseek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|(?:~|[^\r\n\p{L}\p{P}\p{S}])?[\p{L}\p{M}]+)"
    R"(| ?(?:(?!~)[\p{P}\p{S}])++[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSpark =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)";

using Names = std::vector<std::string_view>;
using Patterns = std::vector<std::string_view>;
constexpr auto kVectors = Evidence::Vectors, kPublished = Evidence::Published, kPeer = Evidence::Peer;

PreTokenizerKind kind(Names names, Patterns patterns, Evidence evidence) {
    PreTokenizerKind kind;
    kind.names = std::move(names);
    kind.patterns = std::move(patterns);
    kind.evidence = evidence;
    return kind;
}
PreTokenizerKind with_nfc(PreTokenizerKind kind) {
    kind.normalizes = true;
    return kind;
}
// Words in the vocabulary become one token.
PreTokenizerKind whole_words(PreTokenizerKind kind) {
    kind.ignores_merges = true;
    return kind;
}
PreTokenizerKind with_bos(PreTokenizerKind kind) {
    kind.adds_bos = true;
    return kind;
}
PreTokenizerKind without_bos(PreTokenizerKind kind) {
    kind.has_bos = false;
    return kind;
}
PreTokenizerKind in_llama(PreTokenizerKind kind, Patterns patterns) {
    kind.llama_patterns = std::move(patterns);
    return kind;
}

// The GPT-2 pattern, alone or after a split at every digit, and Llama 3's.
void add_common(std::vector<PreTokenizerKind> &all) {
    all.push_back(kind({"gpt-2"}, {kGpt2}, kVectors));
    all.push_back(with_nfc(kind({"mpt", "olmo"}, {kGpt2}, kPublished)));  // GPT-NeoX's
    all.push_back(kind({"phi-2", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "a.x-4.0",
                        "mellum", "modern-bert", "roberta-bpe", "jina-v1-en", "jina-v2-code", "jina-v2-es",
                        "jina-v2-de", "jina-es", "jina-de"},
                       {kGpt2}, kPeer));
    all.push_back(kind({"starcoder"}, {kDigit, kGpt2}, kVectors));
    all.push_back(with_nfc(kind({"command-r"}, {kDigit, kGpt2}, kPublished)));
    all.push_back(
        kind({"smollm", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"}, {kDigit, kGpt2}, kPeer));
    all.push_back(whole_words(with_bos(kind({"llama-bpe", "llama3", "llama-v3"}, {kLlama3}, kVectors))));
    all.push_back(whole_words(with_bos(
        kind({"falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0", "jina-v5-nano"}, {kLlama3}, kPeer))));
    all.push_back(kind({"dbrx", "smaug-bpe"}, {kLlama3}, kPeer));
    all.push_back(whole_words(without_bos(kind({"glm4", "glm5"}, {kLlama3}, kPeer))));
    all.push_back(without_bos(kind({"chatglm-bpe"}, {kLlama3}, kPeer)));
    all.push_back(kind({"jais-2"}, {kJais2}, kPublished));
    all.push_back(whole_words(kind({"minicpm5"}, {kThreeDigits, kMiniCpm5}, kPublished)));
}

void add_qwen_like(std::vector<PreTokenizerKind> &all) {
    all.push_back(with_nfc(kind({"qwen2", "deepseek-r1-qwen", "f2llmv2"}, {kQwen2}, kVectors)));
    all.push_back(with_nfc(kind({"stablelm2", "hunyuan"}, {kQwen2}, kPublished)));
    all.push_back(kind({"grok-2"}, {kQwen2}, kPublished));
    all.push_back(kind({"megrez", "kormo", "openpangu", "solar-open"}, {kQwen2}, kPeer));
    all.push_back(with_nfc(kind({"qwen35"}, {kQwen35}, kPublished)));
    all.push_back(kind({"ufakzeka"}, {kUfakzeka}, kPeer));
    all.push_back(kind({"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}, kPublished));
    all.push_back(kind({"seed-coder"}, {kSeedCoder}, kPublished));
    all.push_back(kind({"exaone-moe"}, {kExaoneMoe}, kPublished));
    all.push_back(kind({"laguna"}, {R"([^\n]+|[\n]+)", kQwen2}, kPeer));
}

// Words that end where a capital follows a small letter.
void add_case_aware(std::vector<PreTokenizerKind> &all) {
    all.push_back(in_llama(whole_words(with_bos(kind({"tekken"}, {kTekken}, kVectors))), {kLlamaTekken}));
    all.push_back(in_llama(kind({"gpt-4o", "llama4"}, {kGpt4o}, kVectors), {kLlamaGpt4o}));
    all.push_back(in_llama(kind({"minimax-m2", "kanana2", "talkie"}, {kGpt4o}, kPublished), {kLlamaGpt4o}));
    all.push_back(whole_words(kind({"granite-embed-multi-97m"}, {kGpt4o}, kPeer)));
    all.push_back(
        kind({"tiny_aya", "cohere2moe", "cohere2_moe"}, {kGroupsOfThreeInWords, kGpt4o}, kPublished));
    all.push_back(whole_words(kind({"youtu"}, {kYoutuScripts, kYoutu}, kPeer)));
    all.push_back(in_llama(
        kind({"kimi-k2"}, {kKimi}, kPublished),
        {R"(\p{sc:Han}+)",
         R"([^\r\n\p{L}\p{N}]?\p{L}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
         R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"}));
}

void add_deepseek_like(std::vector<PreTokenizerKind> &all) {
    // The run must start the piece or follow a non-space. This does not change what `\s+$` matches, but keeps
    // a long run of blanks in mid-text from being tried from each of its positions.
    constexpr std::string_view last_blanks = R"((?<!\s)\s+$)";
    all.push_back(kind(
        {"deepseek-llm"},
        {R"([\r\n])", kDeepseekLetters, kDeepseekSigns, last_blanks, kDeepseekHan, R"(\p{N}+)"}, kPublished));
    all.push_back(kind({"deepseek-coder"},
                       {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekHan, kDigit}, kVectors));
    all.push_back(in_llama(kind({"deepseek-v3"}, {kThreeDigits, kDeepseek3Han, kDeepseek3}, kPublished),
                           {kThreeDigits, kDeepseek3Han, kLlamaDeepseek3}));
    all.push_back(in_llama(
        kind({"hunyuan-dense", "hy_v4", "joyai-llm"}, {kThreeDigits, kDeepseek3Han, kDeepseek3}, kPeer),
        {kThreeDigits, kDeepseek3Han, kLlamaDeepseek3}));
    all.push_back(kind({"spark2_5"}, {kThreeDigits, kDeepseek3Han, kSpark, kDigit}, kPeer));
    all.push_back(in_llama(
        kind({"afmoe"}, {kAfmoeChunks, kAfmoeLead, kAfmoeThrees, kAfmoeScripts, kDeepseek3}, kPublished),
        {kLlamaAfmoeDigits, kLlamaAfmoeScripts, kLlamaDeepseek3}));
}

void add_others(std::vector<PreTokenizerKind> &all) {
    all.push_back(
        kind({"default"}, {R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", R"([0-9][0-9][0-9])"}, kPeer));
    all.push_back(kind({"falcon"}, {R"([\p{P}$+<=>^~|`]+)", kGpt2, R"([0-9][0-9][0-9])"}, kPeer));
    all.push_back(kind({"bloom", "gpt3-finnish", "poro-chat"}, {kBloom}, kPeer));
    all.push_back(kind({"viking"}, {kBloom, kDigit}, kPeer));
    all.push_back(kind({"superbpe"}, {R"(\p{N}+)", kGroupsOfThree}, kPublished));
    all.push_back(with_bos(kind({"chameleon"},
                                {R"(<sentinel:[0-9]+>)", R"(IMGIMG[A-I]{1,4}Z)", R"([\t\n]|    |  )", kDigit,
                                 R"([\p{P}!-/:-@\[-`{-~])", kGpt2},
                                kPublished)));
}

const std::vector<PreTokenizerKind> &kinds() {
    static const std::vector<PreTokenizerKind> all = [] {
        std::vector<PreTokenizerKind> table;
        add_common(table);
        add_qwen_like(table);
        add_case_aware(table);
        add_deepseek_like(table);
        add_others(table);
        return table;
    }();
    return all;
}

size_t common_prefix(std::string_view a, std::string_view b) {
    size_t same = 0;
    while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
    return same;
}

}  // namespace

std::span<const PreTokenizerKind> pre_tokenizer_kinds() {
    return kinds();
}

const PreTokenizerKind *find_pre_tokenizer(std::string_view name) {
    for (const PreTokenizerKind &kind : kinds())
        for (const std::string_view known : kind.names)
            if (known == name) return &kind;
    return nullptr;
}

std::string_view nearest_pre_tokenizer(std::string_view name) {
    // Most tokenizers since 2023 split words as GPT-4's does: "dbrx", which changes nothing else.
    std::string_view nearest = "dbrx";
    size_t longest = 3;  // common letters below which a match is not significant: "dee", "gpt"
    for (const PreTokenizerKind &kind : kinds())
        for (const std::string_view known : kind.names)
            if (const size_t same = common_prefix(name, known); same > longest) {
                longest = same;
                nearest = known;
            }
    return nearest;
}

std::string pre_tokenizer_names() {
    std::string list;
    for (const PreTokenizerKind &kind : kinds())
        for (const std::string_view name : kind.names) list.append(list.empty() ? "" : ", ").append(name);
    return list;
}

}  // namespace runnel::text
