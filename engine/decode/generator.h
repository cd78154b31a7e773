// A continuation, token by token: sample, decode, look for the end, feed. The caller pulls the text.
//
//   Generator generator(session, sampler, vocabulary, options, &stop);
//   generator.start(prompt);
//   while (auto text = generator.next()) show(*text);
//   generator.finish_reason();
//
// With a speculator, a pass may bring several tokens; the caller still gets them one by one.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/decode/answer.h"
#include "engine/decode/sampler.h"
#include "engine/decode/session.h"
#include "engine/decode/speculation/speculator.h"
#include "engine/decode/stop_request.h"

namespace runnel::decode {

struct Timings {
    int64_t prompt_tokens = 0;   // of the whole prompt
    int64_t prefill_tokens = 0;  // of those, computed now (the others were in the cache)
    double prefill_seconds = 0;
    double first_token_seconds = 0;  // from start() to the first token sampled
    int64_t decode_steps = 0;        // tokens that went to the model after the prefill, and stayed
    double decode_seconds = 0;       // for those, and for drafting

    double prefill_rate() const { return prefill_seconds > 0 ? double(prefill_tokens) / prefill_seconds : 0; }
    double decode_rate() const { return decode_seconds > 0 ? double(decode_steps) / decode_seconds : 0; }
};

class Generator {
  public:
    // All references are kept.
    Generator(Session &session, Sampler &sampler, Vocabulary vocabulary, GenerationOptions options,
              StopRequest *stop = nullptr, Speculator *speculator = nullptr);

    // Makes the session hold `prompt` (of which it may have a part already). Precondition: !prompt.empty().
    // Throws what Session::feed does; a prompt needs room for itself only.
    void start(std::span<const TokenId> prompt);

    // The text of the next token as far as it is certain: possibly empty, in whole UTF-8 characters, bytes
    // that can be none replaced by U+FFFD. nullopt: the text is over.
    std::optional<std::string> next();

    FinishReason finish_reason() const { return answer_.reason(); }
    bool context_full() const { return context_full_; }  // why it is Length
    int64_t forgotten() const { return forgotten_; }     // tokens that GenerationOptions::shift_keeping cost
    // Generated, without the one that ended it.
    const std::vector<TokenId> &tokens() const { return answer_.tokens(); }
    const Timings &timings() const { return timings_; }

  private:
    bool feed_last();
    void account_for_pass(const Pass &pass);
    bool make_room();
    std::string end(FinishReason reason);
    void settle();

    Session *session_;
    Sampler *sampler_;
    Answer answer_;
    StopRequest *stop_;
    Speculator *speculator_;
    std::vector<TokenId> ahead_;  // known, but not asked for yet; the session has all but the last
    size_t next_ = 0;             // of those
    bool fed_ = true;             // the last token of the answer is in the session
    std::optional<size_t> shift_keeping_;
    int64_t forgotten_ = 0;
    bool context_full_ = false;
    std::chrono::steady_clock::time_point started_{};
    Timings timings_;
};

}  // namespace runnel::decode
