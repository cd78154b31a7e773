// The output of `run`: one answer as it is generated, or several at the end, as text or as JSON.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/commands/generation.h"
#include "engine/commands/io.h"
#include "engine/commands/json.h"
#include "engine/commands/options.h"
#include "engine/commands/prompt_format.h"
#include "engine/completion/event.h"

namespace runnel::commands {

// As text: all samples with a line "---" between them, or the best beam. As JSON: the first sample or the
// best beam, and "samples" or "beams", a list of all. "logprob" is the sum over the tokens of an answer, its
// end token included, in the model's own distribution; "score" is the mean per token; "best" is the index of
// the best answer.
class RunOutput {
  public:
    // All references must outlive it. `prompt`: the text, for --echo.
    RunOutput(const RunOptions &options, const completion::PromptFormat &format, const std::string &prompt,
              Io &io);

    void add(const completion::Piece &piece);
    void add(const completion::Done &done);
    // Adds a key to the JSON.
    void attach(const std::string &key, Json value) { more_[key] = std::move(value); }
    // Call after the last answer: writes the rest and returns the run's statistics.
    Report finish(decode::Engine &engine, uint64_t seed);

    bool interrupted() const;  // true if any answer was
    const completion::Done &first() const { return answers_.front().done; }

  private:
    struct Answer {
        AnswerText text;
        std::string shown = {};  // the text, if it is not streamed
        completion::Done done = {};
    };
    Answer &answer(int32_t sample);
    void show(Answer &answer, const std::string &text);
    Report summary(const decode::Engine &engine, uint64_t seed) const;
    Json json(const Report &report, const text::Tokenizer &tokenizer) const;
    void write_text();

    const RunOptions &options_;
    const completion::PromptFormat &format_;
    const std::string &prompt_;
    Io &io_;
    const bool many_, streams_;
    std::vector<Answer> answers_;
    Json more_ = Json::object();
};

}  // namespace runnel::commands
