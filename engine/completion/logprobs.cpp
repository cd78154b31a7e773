#include "engine/completion/logprobs.h"

#include <algorithm>
#include <utility>

#include "engine/text/utf8.h"

namespace runnel::completion {

using decode::TokenLogProbability;
using text::Json;

namespace {

std::string whole_characters(std::string_view bytes) {
    text::Utf8Stream stream;
    std::string text = stream.push(bytes);
    return text += stream.flush();
}

SpelledToken spelled(const TokenLogProbability &token, const text::Tokenizer &tokenizer) {
    const bool has_bytes = !tokenizer.is_control(token.id) && token.id < tokenizer.size();
    const std::string bytes = tokenizer.decode(token.id);
    const std::string text =
        whole_characters(has_bytes ? std::string_view(bytes) : tokenizer.piece(token.id));
    return {token.id, text, bytes, has_bytes, token.log_probability, token.rank};
}

Json entry(const SpelledToken &token) {
    Json bytes = nullptr;
    if (token.has_bytes) {
        bytes = Json::array();
        for (const char c : token.bytes) bytes.push_back(static_cast<unsigned char>(c));
    }
    return {{"token", token.text},
            {"logprob", token.log_probability},
            {"bytes", std::move(bytes)},
            {"id", token.id}};
}

int64_t characters(std::string_view text) {
    return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::vector<SpelledToken> spell(std::span<const decode::TokenLogProbabilities> tokens,
                                const text::Tokenizer &tokenizer) {
    std::vector<SpelledToken> all;
    for (const decode::TokenLogProbabilities &token : tokens) {
        all.push_back(spelled(token.token, tokenizer));
        for (const TokenLogProbability &other : token.top)
            all.back().top.push_back(spelled(other, tokenizer));
    }
    return all;
}

Json chat_logprobs(std::span<const SpelledToken> tokens) {
    Json content = Json::array();
    for (const SpelledToken &token : tokens) {
        Json one = entry(token), top = Json::array();
        for (const SpelledToken &other : token.top) top.push_back(entry(other));
        one["top_logprobs"] = std::move(top);
        content.push_back(std::move(one));
    }
    return {{"content", std::move(content)}};
}

Json completion_logprobs(std::span<const SpelledToken> tokens) {
    Json texts = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
    text::Utf8Stream stream;
    int64_t offset = 0;
    for (const SpelledToken &token : tokens) {
        texts.push_back(token.text);
        values.push_back(token.log_probability);
        offsets.push_back(offset);
        offset += characters(stream.push(token.bytes));
        Json top = Json::object();
        for (const SpelledToken &other : token.top)
            if (!top.contains(other.text)) top[other.text] = other.log_probability;
        if (!token.top.empty()) top[token.text] = token.log_probability;
        tops.push_back(token.top.empty() ? Json(nullptr) : std::move(top));
    }
    return {{"tokens", std::move(texts)},
            {"token_logprobs", std::move(values)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)}};
}

Json prompt_logprobs(std::span<const SpelledToken> tokens) {
    Json list = Json::array({nullptr});
    for (const SpelledToken &token : tokens) {
        Json all = Json::object();
        const auto add = [&](const SpelledToken &one) {
            all[std::to_string(one.id)] = {
                {"logprob", one.log_probability}, {"rank", one.rank}, {"decoded_token", one.text}};
        };
        add(token);
        for (const SpelledToken &other : token.top) add(other);
        list.push_back(std::move(all));
    }
    return list;
}

}  // namespace runnel::completion
