// Multiple-choice tasks, from files in the formats of llama-perplexity (tools/perplexity in llama.cpp), and the order in
// which it takes them: the same tasks are scored for the same file and number.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::measure {

enum class ChoiceFormat {
    // Lines, six per task: the context, the number of the right ending (0 to 3), four endings.
    HellaSwag,
    // CSV, a line per task: number, sentence with "_" for the gap, two words for it, the right one (1 or 2).
    Winogrande,
    // Little-endian: u32 tasks, u32 offset[tasks] (not used), then per task a question and two lists of answers, of
    // which the second is not used. A text is u32 bytes and the bytes; a list is u32 count, texts, i32 label[count],
    // where 1 is a right answer. MMLU, ARC and TruthfulQA are distributed in this form.
    Questions,
};

struct ChoiceTask {
    struct Answer {
        std::string text;   // the whole text with this answer
        size_t answer_end;  // bytes of `text` up to the end of the answer
        bool is_right = false;
    };
    std::vector<Answer> answers;  // at least one
};

// Throws DecodeError{BadInput} that says which line or task is wrong. `bytes` is untrusted.
std::vector<ChoiceTask> read_choice_tasks(ChoiceFormat format, std::string_view bytes);

// The tasks that llama-perplexity draws if `count` are asked for, in its order. All of them, in the file's order (for
// HellaSwag in random order), if count is 0 or not less than their number.
std::vector<ChoiceTask> draw_tasks(ChoiceFormat format, std::vector<ChoiceTask> tasks, size_t count);

}  // namespace runnel::measure
