// A continuation, token by token: sample, decode, look for the end, feed. The caller pulls the text.
//
//   Generator generator(session, sampler, vocabulary, options, &stop);
//   generator.start(prompt);
//   while (auto text = generator.next()) show(*text);
//   generator.finish_reason();
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decode/sampler.h"
#include "engine/decode/session.h"
#include "engine/decode/stop.h"
#include "engine/decode/stop_request.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace runnel::decode {

// What the generator needs to know about tokens.
struct Vocabulary {
    std::function<std::string(TokenId)> text;  // bytes in running text
    std::function<bool(TokenId)> is_end;       // of generation
};
Vocabulary vocabulary_of(const text::Tokenizer &tokenizer);  // keeps a reference

struct GenerationOptions {
    int64_t max_tokens = -1;            // < 0: until the model ends or the context is full
    std::vector<std::string> stops{};   // strings that end the text; they are not part of it
    std::vector<TokenId> end_tokens{};  // that end it beside the vocabulary's own
    bool ignore_end = false;            // end-of-generation tokens are ordinary tokens
};

enum class FinishReason {
    Stop,       // the model ended, or a stop string came
    Length,     // max_tokens, the deadline, or the end of the context
    Interrupt,  // a stop was requested by the user
};
std::string_view name(FinishReason reason);  // "stop", "length", "interrupt"

struct Timings {
    int64_t prompt_tokens = 0;   // of the whole prompt
    int64_t prefill_tokens = 0;  // of those, computed now (the others were in the cache)
    double prefill_seconds = 0;
    double first_token_seconds = 0;  // from start() to the first token sampled
    int64_t decode_steps = 0;        // steps of one token each after the prefill
    double decode_seconds = 0;

    double prefill_rate() const { return prefill_seconds > 0 ? double(prefill_tokens) / prefill_seconds : 0; }
    double decode_rate() const { return decode_seconds > 0 ? double(decode_steps) / decode_seconds : 0; }
};

class Generator {
  public:
    // All references are kept.
    Generator(Session &session, Sampler &sampler, Vocabulary vocabulary, GenerationOptions options,
              StopRequest *stop = nullptr);

    // Makes the session hold `prompt` (of which it may have a part already). Precondition: !prompt.empty().
    // Throws what Session::feed does; a prompt needs room for itself only.
    void start(std::span<const TokenId> prompt);

    // The text of the next token as far as it is certain: possibly empty, in whole UTF-8 characters, bytes
    // that can be none replaced by U+FFFD. nullopt: the text is over.
    std::optional<std::string> next();

    FinishReason finish_reason() const { return reason_; }
    bool context_full() const { return context_full_; }  // why it is Length
    const std::vector<TokenId> &tokens() const {
        return tokens_;
    }  // generated, without the one that ended it
    const Timings &timings() const { return timings_; }

  private:
    std::optional<std::string> finish(FinishReason reason);
    FinishReason stop_reason() const;
    bool is_end(TokenId id) const;
    bool feed_last();

    Session *session_;
    Sampler *sampler_;
    Vocabulary vocabulary_;
    GenerationOptions options_;
    StopRequest *stop_;
    StopMatcher matcher_;
    text::Utf8Stream characters_;
    std::vector<TokenId> tokens_;
    FinishReason reason_ = FinishReason::Stop;
    bool fed_ = true;  // the last token of tokens_ is in the session
    bool over_ = false, context_full_ = false;
    std::chrono::steady_clock::time_point started_{};
    Timings timings_;
};

}  // namespace runnel::decode
