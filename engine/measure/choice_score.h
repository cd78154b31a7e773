// Scores of multiple-choice tasks, as llama-perplexity defines them: the answer whose tokens are the most probable on
// average counts as the model's choice.
//
// Of a task's texts (one per answer) the scored tokens are:
//   HellaSwag, Questions: from the first token in which the texts differ to the end.
//   Winogrande: the tokens after the word that fills the gap, without the last one (a full stop), if both texts have more
//     than three tokens from the first difference on; otherwise from the first difference on, without the last one.
// llama-perplexity reads another text's logits for the first token of the second text in that last case; this does not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/decode/executor.h"
#include "engine/decode/stop_request.h"
#include "engine/measure/choice_tasks.h"
#include "engine/text/tokenizer.h"

namespace runnel::measure {

// A task in tokens.
struct TokenizedTask {
    struct Answer {
        std::vector<text::TokenId> tokens;
        size_t first, last;  // tokens first .. last - 1 are scored; 1 <= first < last <= tokens.size()
        bool is_right;
    };
    std::vector<Answer> answers;
    size_t
        shared;  // tokens at the beginning of all texts that are computed once; 1 <= shared <= every `first`

    size_t longest() const;  // tokens of the longest text
};

// Throws DecodeError{BadInput} if a text has fewer than two tokens.
TokenizedTask tokenize(const ChoiceTask &task, ChoiceFormat format, const text::Tokenizer &tokenizer);

struct ChoiceScore {
    int64_t tasks = 0, right = 0;
    double chance = 0;  // the expected share of right answers by guessing

    double accuracy() const { return tasks ? static_cast<double>(right) / static_cast<double>(tasks) : 0; }
    // Wilson's 95% confidence interval of the accuracy (Wilson 1927).
    std::pair<double, double> interval() const;
};

class ChoiceRun {
  public:
    // Precondition: executor.context() is at least every longest(), and the pool holds `sequences` contexts; `sequences`
    // is more than any task's answers.
    ChoiceRun(decode::Executor &executor, std::span<const TokenizedTask> tasks, size_t sequences);

    size_t done() const { return done_; }
    bool is_finished() const { return done_ == tasks_.size(); }
    // Scores the next tasks. Returns false if a stop was requested before their end. Throws DecodeError for logits that
    // are not finite.
    bool step(const decode::StopRequest *stop = nullptr);
    ChoiceScore result() const;  // of the tasks done so far
    // The mean log-probability of each answer of the last step's tasks, in order.
    const std::vector<std::vector<double>> &last_scores() const { return scores_; }

  private:
    decode::Executor &executor_;
    std::span<const TokenizedTask> tasks_;
    size_t sequences_;
    size_t done_ = 0;
    int64_t right_ = 0;
    double chances_ = 0;
    std::vector<std::vector<double>> scores_;
};

}  // namespace runnel::measure
