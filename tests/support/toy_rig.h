// An executor on the toy model, with helpers for its input and output.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/completion/answer.h"
#include "engine/decode/executor.h"
#include "tests/support/toy_backend.h"

namespace runnel::testing {

inline constexpr int32_t kToyVocab = 40;

struct ToyRig {
    ToyBackend *backend;
    decode::Executor executor;

    // recurrent: with a layer that keeps a state.
    explicit ToyRig(const decode::ExecutorOptions &options, int32_t vocab = kToyVocab, bool recurrent = false)
        : ToyRig(std::make_unique<ToyBackend>(), options, vocab, recurrent) {}

  private:
    ToyRig(std::unique_ptr<ToyBackend> toy, const decode::ExecutorOptions &options, int32_t vocab,
           bool recurrent)
        : backend(toy.get()), executor(std::move(toy), toy_program(vocab, recurrent), options) {}
};

// The text of token i is the character '!' + i. Token 0 ends a text.
inline completion::Vocabulary toy_letters() {
    return {[](decode::TokenId id) { return std::string(1, static_cast<char>('!' + id)); },
            [](decode::TokenId id) { return id == 0; }};
}

inline std::vector<decode::TokenId> random_tokens(std::mt19937 &rng, size_t n, uint32_t vocab = kToyVocab) {
    std::vector<decode::TokenId> tokens(n);
    for (decode::TokenId &t : tokens) t = static_cast<decode::TokenId>(rng() % vocab);
    return tokens;
}

}  // namespace runnel::testing
