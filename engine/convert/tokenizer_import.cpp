#include "engine/convert/tokenizer_import.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/convert/pre_tokenizer_match.h"
#include "engine/convert/safetensors.h"
#include "engine/text/json.h"
#include "engine/text/sentencepiece.h"
#include "engine/text/token.h"
#include "gguf/file.h"
#include "gguf/printable.h"

namespace runnel::convert {
namespace {

namespace fs = std::filesystem;
using gguf::FileError;
using text::Json;
using text::TokenType;

// A JSON file of the folder; null if it does not exist.
Json read_json(const fs::path &path) {
    std::error_code error;
    if (!fs::exists(path, error)) return nullptr;
    try {
        return text::parse_json(read_text(path), {.bytes = size_t{128} << 20, .values = 8'000'000});
    } catch (const text::JsonError &problem) {
        throw FileError(gguf::printable(path.native(), 4096) + ": " + problem.what());
    }
}

std::string string_of(const Json &object, std::string_view key) {
    const Json *const value = text::find_member(object, key);
    return value && value->is_string() ? value->get<std::string>() : std::string();
}

bool flag_of(const Json &object, std::string_view key) {
    const Json *const value = text::find_member(object, key);
    return value && value->is_boolean() && value->get<bool>();
}

struct Vocabulary {
    std::vector<std::string> pieces;
    std::vector<TokenType> types;
    std::vector<bool> taken;
    std::unordered_map<std::string, int32_t> ids;

    explicit Vocabulary(uint64_t size) : pieces(size), types(size, TokenType::Unused), taken(size) {}

    void add(const std::string &piece, const Json &id, TokenType type, bool may_repeat) {
        if (!id.is_number_unsigned() || id.get<uint64_t>() >= pieces.size())
            refuse_tokenizer("token " + gguf::quoted(piece) + " has an id outside of the model's " +
                             std::to_string(pieces.size()) + " rows");
        const auto at = static_cast<size_t>(id.get<uint64_t>());
        if (taken[at] && (!may_repeat || pieces[at] != piece))
            refuse_tokenizer("tokens " + gguf::quoted(pieces[at]) + " and " + gguf::quoted(piece) +
                             " have the same id");
        const auto [known, is_new] = ids.emplace(piece, static_cast<int32_t>(at));
        if (!is_new && known->second != static_cast<int32_t>(at))
            refuse_tokenizer("token " + gguf::quoted(piece) + " has two ids");
        pieces[at] = piece, types[at] = type, taken[at] = true;
    }
    std::optional<int32_t> find(const std::string &piece) const {
        const auto found = ids.find(piece);
        return found == ids.end() ? std::nullopt : std::optional(found->second);
    }
    // Names for the ids that have none.
    void fill() {
        for (size_t id = 0; id < pieces.size(); ++id)
            if (!taken[id]) {
                pieces[id] = "[PAD" + std::to_string(id) + "]";
                while (ids.contains(pieces[id])) pieces[id] += "_";
            }
    }
};

// Tokens that steer the model although some folders do not mark them so (as llama.cpp's converter decides).
bool looks_special(std::string_view piece) {
    constexpr std::string_view kLeft = "<\xEF\xBD\x9C", kRight = "\xEF\xBD\x9C>";  // with full-width bars
    return piece == "<pad>" || piece == "<mask>" || piece == "<2mass>" || piece == "[@BOS@]" ||
           (piece.starts_with("<|") && piece.ends_with("|>")) ||
           (piece.starts_with(kLeft) && piece.ends_with(kRight)) ||
           (piece.starts_with("<unused") && piece.ends_with(">"));
}

bool is_byte_token(std::string_view piece) {
    const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
    return piece.size() == 6 && piece.starts_with("<0x") && is_hex(piece[3]) && is_hex(piece[4]) &&
           piece[5] == '>';
}

Vocabulary read_vocabulary(const Json &tokenizer, const Json &model, uint64_t size, bool has_byte_tokens) {
    Vocabulary vocabulary(size);
    const Json *const vocab = text::find_member(model, "vocab");
    if (!vocab || !vocab->is_object()) refuse_tokenizer("has no vocab");
    const std::string unknown = string_of(model, "unk_token");
    for (const auto &[piece, id] : vocab->items()) {
        TokenType type = TokenType::Normal;
        if (has_byte_tokens && is_byte_token(piece)) type = TokenType::Byte;
        if (!unknown.empty() && piece == unknown) type = TokenType::Unknown;
        vocabulary.add(piece, id, type, false);
    }
    const Json *const added = text::find_member(tokenizer, "added_tokens");
    if (!added) return vocabulary;
    if (!added->is_array()) refuse_tokenizer("its added_tokens are not a list");
    for (const Json &token : *added) {
        const Json *const id = text::find_member(token, "id");
        const std::string piece = string_of(token, "content");
        if (!id || piece.empty()) refuse_tokenizer("an added token has no id or no content");
        TokenType type =
            flag_of(token, "special") || looks_special(piece) ? TokenType::Control : TokenType::UserDefined;
        if (!unknown.empty() && piece == unknown) type = TokenType::Unknown;
        vocabulary.add(piece, *id, type, true);
    }
    return vocabulary;
}

struct Merge {
    std::string left, right;
};

std::vector<Merge> read_merges(const Json &model, const Vocabulary &vocabulary) {
    const Json *const list = text::find_member(model, "merges");
    if (!list || !list->is_array()) refuse_tokenizer("has no merges");
    std::vector<Merge> merges;
    merges.reserve(list->size());
    for (const Json &item : *list) {
        Merge merge;
        if (item.is_string()) {
            const auto text = item.get<std::string>();
            const size_t blank = text.find(' ', 1);
            if (blank == text.npos) refuse_tokenizer("the merge " + gguf::quoted(text) + " is not a pair");
            merge = {text.substr(0, blank), text.substr(blank + 1)};
        } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
            merge = {item[0].get<std::string>(), item[1].get<std::string>()};
        } else {
            refuse_tokenizer("a merge is not a pair of strings");
        }
        for (const std::string &piece : {merge.left, merge.right, merge.left + merge.right})
            if (!vocabulary.find(piece))
                refuse_tokenizer("a merge needs the token " + gguf::quoted(piece) + ", which is missing");
        merges.push_back(std::move(merge));
    }
    return merges;
}

void add_byte_level(const Json &tokenizer, const std::vector<Merge> &merges, gguf::Writer &out) {
    out.add("tokenizer.ggml.model", "gpt2");
    out.add("tokenizer.ggml.pre", pre_tokenizer_name(tokenizer));
    gguf::Array list(gguf::ValueType::String);
    for (const Merge &merge : merges) {
        // (In this alphabet no piece has a blank, so one blank separates two pieces.)
        if (merge.left.find(' ') != std::string::npos || merge.right.find(' ') != std::string::npos)
            refuse_tokenizer("a merge has a blank in a piece, which byte-level BPE does not have");
        list.push(merge.left + " " + merge.right);
    }
    out.add("tokenizer.ggml.merges", list);
}

// Whether the text gets a "▁" in front. Refuses normalizers and pre-tokenizers that SentencePiece does not have.
bool adds_blank(const Json &tokenizer) {
    bool prepends = false;
    std::vector<const Json *> parts;
    const auto collect = [&](const char *key, const char *list) {
        const Json *const component = text::find_member(tokenizer, key);
        if (!component) return;
        const Json *const inner = text::find_member(*component, list);
        if (inner && inner->is_array())
            for (const Json &part : *inner) parts.push_back(&part);
        else
            parts.push_back(component);
    };
    collect("normalizer", "normalizers");
    collect("pre_tokenizer", "pretokenizers");
    for (const Json *const part : parts) {
        const std::string type = string_of(*part, "type");
        const Json *const pattern = text::find_member(*part, "pattern");
        const bool is_blank = pattern && string_of(*pattern, "String") == " ";
        if (type == "Prepend" && string_of(*part, "prepend") == text::kBlankMark) {
            prepends = true;
        } else if (type == "Metaspace") {
            const std::string scheme = string_of(*part, "prepend_scheme");
            if (string_of(*part, "replacement") != text::kBlankMark)
                refuse_tokenizer("its Metaspace replaces blanks by another sign");
            if (scheme != "always" && scheme != "first" && scheme != "never")
                prepends = flag_of(*part, "add_prefix_space");
            else
                prepends = prepends || scheme != "never";
        } else if (!(type == "Replace" && is_blank && string_of(*part, "content") == text::kBlankMark) &&
                   !(type == "Split" && is_blank)) {
            refuse_tokenizer("its normalizer or pre-tokenizer has a part of type " + gguf::quoted(type) +
                             ", which is not supported with byte tokens");
        }
    }
    return prepends;
}

// Scores by which SentencePiece's algorithm does what the merges say: it joins the neighbors whose joint piece has the
// best score, the merges those of the first pair. So all pairs of pieces that form a piece must be merges, and those
// of one piece must follow each other.
std::vector<float> scores_of(const std::vector<Merge> &merges, const Vocabulary &vocabulary) {
    std::vector<float> scores(vocabulary.pieces.size(), 0);
    std::unordered_map<std::string, size_t> pairs;  // merges per joint piece
    float rank = 0;
    const std::string *last = nullptr;
    std::string joint;
    for (const Merge &merge : merges) {
        joint = merge.left + merge.right;
        const auto at = pairs.try_emplace(joint, 0).first;
        if (last != &at->first) {
            if (at->second > 0)
                refuse_tokenizer("the merges that form " + gguf::quoted(joint) +
                                 " do not follow each other, so they cannot be "
                                 "written as scores");
            rank -= 1;
            scores[static_cast<size_t>(*vocabulary.find(joint))] = rank;
            last = &at->first;
        }
        ++at->second;
    }
    for (const auto &[piece, count] : pairs) {
        size_t possible = 0;
        for (size_t at = 1; at < piece.size(); ++at)
            possible += (static_cast<uint8_t>(piece[at]) & 0xC0) != 0x80 &&
                        vocabulary.find(piece.substr(0, at)) && vocabulary.find(piece.substr(at));
        if (possible != count)
            refuse_tokenizer("not every pair that forms " + gguf::quoted(piece) +
                             " is a merge, so they cannot be written as scores");
    }
    return scores;
}

void add_sentencepiece(const Json &tokenizer, const std::vector<Merge> &merges, const Vocabulary &vocabulary,
                       gguf::Writer &out) {
    out.add("tokenizer.ggml.model", "llama");
    out.add("tokenizer.ggml.add_space_prefix", adds_blank(tokenizer));
    const std::vector<float> scores = scores_of(merges, vocabulary);
    out.add("tokenizer.ggml.scores", std::span<const float>(scores));
}

// The text of a special token in tokenizer_config.json: a string, or an object with its content.
std::string special_text(const Json &config, const std::string &name) {
    const Json *const value = text::find_member(config, name);
    if (!value) return {};
    return value->is_object() ? string_of(*value, "content") : string_of(config, name);
}

std::vector<int64_t> ids_of(const Json *value) {
    std::vector<int64_t> ids;
    if (value && value->is_number_unsigned()) ids.push_back(value->get<int64_t>());
    if (value && value->is_array())
        for (const Json &id : *value)
            if (id.is_number_unsigned()) ids.push_back(id.get<int64_t>());
    return ids;
}

// Whether the tokenizer puts bos before and eos behind a text by itself.
struct Frame {
    bool bos = false, eos = false, known = false;
};

void read_frame(const Json *processor, const std::string &bos, const std::string &eos, Frame &frame) {
    if (!processor) return;
    const std::string type = string_of(*processor, "type");
    if (type == "Sequence") {
        if (const Json *const parts = text::find_member(*processor, "processors"); parts && parts->is_array())
            for (const Json &part : *parts) read_frame(&part, bos, eos, frame);
        return;
    }
    const Json *const single = text::find_member(*processor, "single");
    if (type != "TemplateProcessing" || !single || !single->is_array() || single->empty()) return;
    frame.known = true;
    const auto special = [](const Json &item) {
        const Json *const token = text::find_member(item, "SpecialToken");
        return token ? string_of(*token, "id") : std::string();
    };
    frame.bos = !bos.empty() && special(single->front()) == bos;
    frame.eos = !eos.empty() && special(single->back()) == eos;
}

void add_special_ids(const fs::path &folder, const Config &config, const Json &tokenizer,
                     const Json &settings, const Vocabulary &vocabulary, gguf::Writer &out,
                     std::vector<std::string> &notes) {
    const Json generation = read_json(folder / "generation_config.json");
    const std::string bos = special_text(settings, "bos_token"), eos = special_text(settings, "eos_token");
    const auto add = [&](const char *key, std::optional<int64_t> id) {
        if (!id) return;
        if (*id < 0 || static_cast<uint64_t>(*id) >= vocabulary.pieces.size())
            throw FileError(std::string(key) + " is " + std::to_string(*id) + ", outside of the vocabulary");
        out.add(std::string("tokenizer.ggml.") + key, static_cast<uint32_t>(*id));
    };
    const auto id_of = [&](const std::string &piece, const char *key) -> std::optional<int64_t> {
        if (!piece.empty())
            if (const auto found = vocabulary.find(piece)) return *found;
        const std::vector<int64_t> ids = ids_of(config.find(key));
        return ids.empty() ? std::nullopt : std::optional(ids.front());
    };
    add("bos_token_id", id_of(bos, "bos_token_id"));
    // All ends of an answer, the tokenizer's own first.
    std::vector<int64_t> ends;
    if (const auto own = vocabulary.find(eos); own && !eos.empty()) ends.push_back(*own);
    for (const Json *const value :
         {text::find_member(generation, "eos_token_id"), config.find("eos_token_id")})
        for (const int64_t id : ids_of(value))
            if (std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
    constexpr const char *kEnds[] = {"eos_token_id", "eot_token_id", "eom_token_id"};
    for (size_t i = 0; i < ends.size() && i < std::size(kEnds); ++i) add(kEnds[i], ends[i]);
    if (ends.size() > std::size(kEnds))
        notes.push_back("the folder names " + std::to_string(ends.size()) +
                        " tokens that end an answer; a GGUF file holds 3");
    add("unknown_token_id", id_of(special_text(settings, "unk_token"), "unk_token_id"));
    add("padding_token_id", id_of(special_text(settings, "pad_token"), "pad_token_id"));
    Frame frame;
    read_frame(text::find_member(tokenizer, "post_processor"), bos, eos, frame);
    out.add("tokenizer.ggml.add_bos_token",
            frame.known ? frame.bos : flag_of(settings, "add_bos_token") && !bos.empty());
    out.add("tokenizer.ggml.add_eos_token",
            frame.known ? frame.eos : flag_of(settings, "add_eos_token") && !eos.empty());
}

void add_chat_templates(const fs::path &folder, const Json &settings, gguf::Writer &out) {
    std::error_code error;
    std::map<std::string, std::string> named;
    const auto take = [&](const Json *value) {
        if (value && value->is_string()) named.emplace("default", value->get<std::string>());
        if (!value || !value->is_array()) return;
        for (const Json &item : *value)
            if (!string_of(item, "name").empty())
                named.emplace(string_of(item, "name"), string_of(item, "template"));
    };
    if (fs::exists(folder / "chat_template.jinja", error))
        named.emplace("default", read_text(folder / "chat_template.jinja"));
    take(text::find_member(settings, "chat_template"));
    const Json apart = read_json(folder / "chat_template.json");
    take(text::find_member(apart, "chat_template"));
    for (const auto &[name, source] : named)
        if (!source.empty())
            out.add(name == "default" ? "tokenizer.chat_template" : "tokenizer.chat_template." + name,
                    source);
}

}  // namespace

std::vector<std::string> import_tokenizer(const fs::path &folder, const Config &config, uint64_t size,
                                          gguf::Writer &out) {
    const fs::path file = folder / "tokenizer.json";
    const Json tokenizer = read_json(file), settings = read_json(folder / "tokenizer_config.json");
    if (tokenizer.is_null())
        throw FileError(
            gguf::printable(file.native(), 4096) + ": is missing; the tokenizer is read from this file",
            true);
    const Json *const model = text::find_member(tokenizer, "model");
    if (!model || (string_of(*model, "type") != "BPE" && text::find_member(*model, "type")))
        refuse_tokenizer("its model is of type " + gguf::quoted(model ? string_of(*model, "type") : "") +
                         "; only BPE can be converted");
    for (const char *const key : {"continuing_subword_prefix", "end_of_word_suffix"})
        if (!string_of(*model, key).empty())
            refuse_tokenizer(std::string("its model has a ") + key + ", which is not supported");
    const bool has_byte_tokens = flag_of(*model, "byte_fallback");
    Vocabulary vocabulary = read_vocabulary(tokenizer, *model, size, has_byte_tokens);
    const std::vector<Merge> merges = read_merges(*model, vocabulary);
    vocabulary.fill();
    if (has_byte_tokens)
        add_sentencepiece(tokenizer, merges, vocabulary, out);
    else
        add_byte_level(tokenizer, merges, out);
    gguf::Array pieces(gguf::ValueType::String), types(gguf::ValueType::I32);
    for (const std::string &piece : vocabulary.pieces) pieces.push(piece);
    for (const TokenType type : vocabulary.types) types.push(static_cast<int32_t>(type));
    out.add("tokenizer.ggml.tokens", pieces);
    out.add("tokenizer.ggml.token_type", types);
    std::vector<std::string> notes;
    add_special_ids(folder, config, tokenizer, settings, vocabulary, out, notes);
    add_chat_templates(folder, settings, out);
    return notes;
}

}  // namespace runnel::convert
