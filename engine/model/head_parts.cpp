#include "engine/model/head_parts.h"

#include <cstring>
#include <variant>

#include "gguf/printable.h"
#include "kernels/steps.h"

namespace runnel::model {
namespace {

using namespace kernels;

constexpr const char *kEmbedding = "token_embd.weight", *kOutput = "output.weight", *kTokens = "d2t";

[[noreturn]] void fail(const gguf::File &file, const std::string &what) {
    throw ModelError(name_of(file) + ": " + what);
}

[[noreturn]] void missing(const gguf::File &head, const char *name, const std::string &why) {
    fail(head, std::string("tensor ") + name + ": missing" + why);
}

}  // namespace

int64_t draft_rows(const gguf::File &head) {
    const gguf::Tensor *t = head.find_tensor(kTokens);
    if (!t) return 0;
    if (t->type != gguf::Type::I64 || t->rank > 1 || t->elements() > INT32_MAX)
        fail(head, "tensor d2t: expected a vector of i64");
    return t->elements();
}

std::vector<int32_t> draft_tokens(const gguf::File &head, int64_t vocab) {
    std::vector<int32_t> tokens(static_cast<size_t>(draft_rows(head)));
    std::vector<bool> known(static_cast<size_t>(vocab));
    for (size_t i = 0; i < tokens.size(); ++i) {
        int64_t token;
        std::memcpy(&token, head.find_tensor(kTokens)->data + i * sizeof token, sizeof token);
        const std::string row = "tensor d2t: row " + std::to_string(i) + " is token " + std::to_string(token);
        if (token < 0 || token >= vocab)
            fail(head, row + ", but the target has " + std::to_string(vocab) + " tokens");
        if (known[static_cast<size_t>(token)]) fail(head, row + ", like an earlier row");
        known[static_cast<size_t>(token)] = true;
        tokens[i] = static_cast<int32_t>(token);
    }
    return tokens;
}

std::string target_has(const Model &target, int64_t count, std::string_view what) {
    return "the target (" + gguf::printable(target.hyper.architecture) + ") has " + std::to_string(count) +
           std::string(what);
}

void check_same_tokens(const Model &target, const gguf::File &target_file, const gguf::File &head) {
    const char *key = "tokenizer.ggml.tokens";
    const gguf::Value *own = head.find(key), *other = target_file.find(key);
    if (own && other && own->size() != other->size())
        fail(head, std::string("key ") + key + ": has " + std::to_string(own->size()) + " tokens, but " +
                       target_has(target, static_cast<int64_t>(other->size()), ""));
}

const Embed &embedding_of(const Model &target, const gguf::File &head) {
    const Embed *found = nullptr;
    for_each_step<Embed>(target.program, [&](const Embed &embed) {
        if (!found && embed.table != kNoWeight) found = &embed;
    });
    if (!found) fail(head, "the target has no token embeddings");
    return *found;
}

WeightId HeadMatrices::borrow(const char *name, WeightId of_target) const {
    const Weight &weight = target.program.weights[static_cast<size_t>(of_target)];
    const int64_t width = builder.hyper().embedding_length;
    if (weight.cols != width)
        missing(head, name,
                ", and the target's has " + std::to_string(weight.cols) + " columns, expected " +
                    std::to_string(width) + " (embedding_length)");
    if (target_file.find("prism.hadamard.version")) missing(head, name, ", and the target's is rotated");
    builder.program().weights.push_back(weight);
    return static_cast<WeightId>(builder.program().weights.size() - 1);
}

WeightId HeadMatrices::embedding() const {
    if (!builder.has(kEmbedding)) return borrow(kEmbedding, embedding_of(target, head).table);
    return builder.matrix(kEmbedding, {target.program.token_ids(), "the target's tokens"},
                          {builder.hyper().embedding_length, "embedding_length"});
}

WeightId HeadMatrices::output(bool tied) const {
    const Size width{builder.hyper().embedding_length, "embedding_length"};
    const bool some = builder.has(kTokens);
    const Size rows{builder.hyper().vocab, some ? "rows of d2t" : "the target's tokens"};
    if (builder.has(kOutput)) return builder.matrix(kOutput, rows, width);
    if (tied && builder.has(kEmbedding)) return builder.matrix(kEmbedding, rows, width);
    if (some) missing(head, kOutput, ", but there is d2t");
    return borrow(kOutput, std::get<Logits>(target.program.steps.back()).weight);
}

}  // namespace runnel::model
