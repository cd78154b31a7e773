// Answers of a completion queue, gathered from its events.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/completion/queue.h"

namespace runnel::testing {

struct Answered {
    std::string text;
    std::vector<std::string> parts = {};  // the text of each piece
    std::vector<decode::TokenId> tokens;  // of the pieces
    completion::Done done = {};
};
using AnswerKey = std::pair<completion::RequestId, int32_t>;  // request and sample
using AllAnswers = std::map<AnswerKey, Answered>;

// Adds a queue's events to `answers`; calls `on_done` at the end of each answer.
template <class OnDone>
void gather(const completion::CompletionQueue &queue, AllAnswers &answers, OnDone on_done) {
    for (const completion::Event &event : queue.events()) {
        if (const auto *piece = std::get_if<completion::Piece>(&event)) {
            Answered &answer = answers[{piece->id, piece->sample}];
            answer.text += piece->text;
            answer.parts.push_back(piece->text);
            if (piece->token != text::kNoToken) answer.tokens.push_back(piece->token);
        } else if (const auto *done = std::get_if<completion::Done>(&event)) {
            answers[{done->id, done->sample}].done = *done;
            on_done(AnswerKey{done->id, done->sample});
        }
    }
}
inline void gather(const completion::CompletionQueue &queue, AllAnswers &answers) {
    gather(queue, answers, [](AnswerKey) {});
}

// Steps until all answers are done; a stop request ends them with the text so far.
inline AllAnswers answer_all(completion::CompletionQueue &queue, const decode::StopRequest *stop = nullptr) {
    AllAnswers answers;
    while (queue.unfinished() > 0) {
        const bool going = queue.step(stop);
        gather(queue, answers);
        if (going) continue;
        const bool deadline = stop->reason() == decode::StopRequest::Reason::Deadline;
        queue.end_all(deadline ? completion::FinishReason::Deadline : completion::FinishReason::Interrupt);
        gather(queue, answers);
    }
    return answers;
}

// One request, alone in a queue of its own.
inline Answered answer_one(decode::Executor &executor, const completion::Vocabulary &vocabulary,
                           const completion::Request &request,
                           std::unique_ptr<decode::Speculator> speculator = nullptr,
                           const decode::StopRequest *stop = nullptr) {
    decode::MakeSpeculator make;
    if (speculator) make = [&speculator] { return std::move(speculator); };
    completion::CompletionQueue queue(executor, vocabulary, {.drafts = make});
    queue.submit(request);
    return answer_all(queue, stop).begin()->second;
}

}  // namespace runnel::testing
