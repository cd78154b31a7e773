// One prompt in, one answer out.
#include <algorithm>
#include <chrono>
#include <optional>

#include "engine/commands/chat/conversation.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/commands/run/run_many.h"
#include "engine/decode/error.h"
#include "engine/decode/prompt_file.h"
#include "engine/decode/session.h"
#include "engine/text/utf8.h"
#include "gguf/printable.h"
#include "gguf/writer.h"

namespace runnel::commands {
namespace {

using decode::Engine;
using decode::Generator;
using decode::Sampler;
using decode::StopRequest;

constexpr double kPatience = 3;  // seconds

// The last line end of a file is not part of the text, as llama.cpp has it.
std::string without_last_newline(std::string text) {
    if (text.ends_with('\n')) text.pop_back();
    if (text.ends_with('\r')) text.pop_back();
    return text;
}

// The argument, then the file or what is piped in, after a blank line.
std::string gather_prompt(const RunOptions &options, Io &io, const StopRequest &stop) {
    std::optional<std::string> more;
    if (options.file) {
        more = without_last_newline(read_all(*options.file, io.in, &stop));
    } else if (!options.prompt || has_input(io.in)) {
        // A pipe that nobody writes to or closes, inherited by accident, looks like a hang otherwise.
        if (options.prompt && !input_ready(io.in, kPatience))
            io.note("waiting for the rest of the prompt on standard input (none is meant: add </dev/null)");
        more = without_last_newline(read_all("-", io.in, &stop));
    }
    std::string text = options.prompt.value_or("");
    if (more && !more->empty()) text += (text.empty() ? "" : "\n\n") + *more;
    if (text.empty())
        throw InputError("the prompt is empty: give it as an argument, with -f FILE, or on standard input");
    return text;
}

// The conversation is what the prompt is a turn of: none for a text that is completed as it stands.
Conversation::Prompt encode_prompt(const RunOptions &options, const std::string &text, const Engine &engine,
                                   const Conversation *conversation, const StopRequest &stop, Io &io) {
    const std::string system = system_prompt(options.system, options.system_file, io.in, &stop);
    if (options.raw && !system.empty()) throw UsageError("--raw has no place for a system prompt");
    Conversation::Prompt prompt;
    if (!conversation) {
        if (!system.empty())
            throw UsageError("the file has no chat template, so there is no place for a system prompt");
        prompt.tokens = engine.tokenizer().encode(text);
        prompt.fixed = engine.tokenizer().adds_bos() ? 1 : 0;
    } else {
        if (!conversation->note().empty()) io.note(conversation->note());
        std::vector<text::Message> messages;
        if (!system.empty()) messages.push_back({"system", system});
        messages.push_back({"user", text});
        prompt = conversation->prompt(messages);
        if (options.overflow != Overflow::Error) prompt.fixed = conversation->fixed_tokens(messages);
    }
    if (prompt.tokens.empty()) throw InputError("the prompt is empty: it has no tokens");
    return prompt;
}

// nullopt where the prompt is no turn of a conversation.
std::optional<Conversation> conversation_of(const RunOptions &options, const Engine &engine) {
    const bool asked = options.chat.given();
    if (options.raw && asked) throw UsageError("--raw completes text without a chat template");
    std::optional<Conversation> conversation;
    if (options.raw) return conversation;
    conversation.emplace(engine.file(), engine.tokenizer(), options.chat);
    if (!conversation->has_template()) {
        if (asked) throw UsageError("the file has no chat template; --chat-template FILE gives one");
        conversation.reset();
    }
    return conversation;
}

// --prompt-cache: what an earlier run computed of this prompt, and what this one leaves for the next.
class PromptCache {
  public:
    // Throws UsageError for a file that is something else.
    PromptCache(const std::optional<std::string> &path, const ModelOptions &options, Engine &engine, Io &io)
        : path_(path), engine_(engine), io_(io) {
        if (!path_) return;
        identity_ = decode::prompt_identity(engine.file(), engine.model().program,
                                            engine.executor().device().kind, options.cache.types);
        decode::PromptFileResult result = decode::load_prompt_file(*path_, identity_, engine.executor());
        using State = decode::PromptFileResult::State;
        const std::string name = gguf::printable(*path_, 4096);
        if (result.state == State::Foreign && !io.overwrite)
            throw UsageError(name + ": " + result.why + ", and will not be overwritten");
        if (result.state == State::Rejected) io.note(name + ": " + result.why + ": not used, written anew");
        if (result.state == State::NoRoom) io.note(name + ": " + result.why + ": not used");
        known_ = std::move(result.tokens);
    }

    // Does nothing when the file holds just that. A file that cannot be written is no reason not to answer.
    void keep(const decode::Session &session, const std::vector<text::TokenId> &prompt) {
        const size_t whole = prompt.size() / size_t{kernels::kBlockTokens} * size_t{kernels::kBlockTokens};
        const bool same = known_.size() == whole && std::equal(known_.begin(), known_.end(), prompt.begin());
        if (!path_ || same || session.tokens().size() < prompt.size()) return;
        try {
            decode::save_prompt_file(*path_, identity_, engine_.executor(), session.cache(), whole,
                                     io_.overwrite);
        } catch (const gguf::WriteError &error) {
            io_.note(error.what());
        }
    }

  private:
    const std::optional<std::string> &path_;
    Engine &engine_;
    Io &io_;
    decode::Checksum::Value identity_{};
    std::vector<text::TokenId> known_;
};

// Text to a terminal is made harmless; a pipe gets what the model said.
void show(const std::string &text, Io &io) {
    io.out.write(io.out.is_terminal() ? text::printable_for_terminal(text) : text);
}

// What is shown, and for --json kept.
class Shown {
  public:
    Shown(const Conversation *conversation, const Conversation::Prompt &prompt, const RunOptions &options,
          Io &io)
        : options_(options), io_(io), text_(conversation, prompt, options.show_thinking) {}

    void push(const std::string &piece) { add(text_.push(piece)); }
    void end() { add(text_.end()); }
    void add(const std::string &text) {
        answer_ += options_.json ? text : "";
        if (!options_.json) show(text, io_);
    }
    const std::string &answer() const { return answer_; }
    const std::string &reasoning() const { return text_.reasoning(); }

  private:
    const RunOptions &options_;
    Io &io_;
    AnswerText text_;
    std::string answer_;  // for JSON only
};

// --spec-verify: the same model, where it is, decodes plainly in a sequence of its own, in step.
class PlainTwin {
  public:
    PlainTwin(Engine &engine, const Sampler &sampler, const decode::Vocabulary &vocabulary,
              const decode::GenerationOptions &limits, StopRequest &stop)
        : engine_(engine),
          session_(engine.executor()),
          sampler_(sampler),
          generator_(session_, sampler_, vocabulary, limits, &stop),
          stop_(stop) {}

    void start(const std::vector<text::TokenId> &prompt) { generator_.start(prompt); }

    // After each step of the other; `piece` is the text that it gave.
    void follow(const Generator &other, const std::optional<std::string> &piece) {
        if (!difference_.empty() || stop_.requested()) return;
        const std::optional<std::string> mine = generator_.next();
        if (stop_.requested()) return;
        const bool same = mine == piece && generator_.tokens() == other.tokens() &&
                          (piece || generator_.finish_reason() == other.finish_reason());
        if (!same) difference_ = describe(other);
    }
    // Empty: there is none.
    const std::string &difference() const { return difference_; }
    size_t compared() const { return generator_.tokens().size(); }

  private:
    std::string describe(const Generator &other) const {
        const auto &a = other.tokens(), &b = generator_.tokens();
        const auto place =
            static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
        const auto token = [&](const std::vector<text::TokenId> &tokens) {
            if (place >= tokens.size()) return std::string("the end");
            return std::to_string(tokens[place]) + " " +
                   gguf::quoted(engine_.tokenizer().decode(tokens[place]));
        };
        return "token " + std::to_string(place) + " of the answer is " + token(a) + " with drafts and " +
               token(b) + " without";
    }

    const Engine &engine_;
    decode::Session session_;
    Sampler sampler_;
    Generator generator_;
    StopRequest &stop_;
    std::string difference_;
};

Json result_json(const Generator &generator, const Shown &shown, const Report &report) {
    Json result = {{"text", shown.answer()},
                   {"tokens", generator.tokens()},
                   {"prompt_tokens", report.timings.prompt_tokens},
                   {"completion_tokens", report.tokens},
                   {"finish_reason", report.finish_reason},
                   {"timings", timings_json(report)}};
    if (!shown.reasoning().empty()) result["reasoning"] = shown.reasoning();
    if (report.speculation) result["speculation"] = speculation_json(*report.speculation);
    return result;
}

// So many sequences as the answers need share the prompt.
decode::EngineOptions engine_options_of(const RunOptions &options, Io &io, const StopRequest &stop) {
    if (options.samples > 1 && options.beams > 1)
        throw UsageError("--samples draws answers, --beams searches for one: choose one of them");
    decode::EngineOptions engine = engine_options(options.model, io, stop);
    engine.sequences = std::max({options.samples, options.beams, options.verify_drafts ? 2 : 1});
    leave_room(engine, options.draft);
    return engine;
}

// For --spec-verify.
void expect_room_for_two(const decode::Executor &executor) {
    if (executor.cells() / 2 < executor.context())
        throw decode::DecodeError(
            decode::DecodeError::Kind::OutOfMemory,
            "--spec-verify decodes the text twice, side by side, and the memory holds " +
                std::to_string(executor.cells()) + " tokens, not two contexts of " +
                std::to_string(executor.context()) + ": choose -c " + std::to_string(executor.cells() / 2) +
                " or less");
}

void check_draft_flags(const RunOptions &options) {
    const bool drafts = drafting_options(options.draft, options.model).has_value();
    if (drafts && options.beams > 1) throw UsageError("--beams searches without drafts");
    if (!options.verify_drafts) return;
    if (!drafts) throw UsageError("--spec-verify needs drafts: --draft-model, --lookup or --self-draft");
    if (options.samples > 1) throw UsageError("--spec-verify compares one answer, not --samples");
    if (options.draft.rule == decode::DraftRule::Rejection)
        throw UsageError("--spec-verify: under --draft-rule rejection the text may differ");
}

}  // namespace

int run(const RunOptions &options, Io &io) {
    StopRequest stop;
    const InterruptScope interrupts(stop);
    std::optional<decode::DeadlineTimer> deadline;
    if (options.generation.deadline)
        deadline.emplace(stop, std::chrono::duration<double>(*options.generation.deadline));

    const decode::SamplingOptions sampling = sampling_options(options.generation);
    decode::GenerationOptions generation = generation_options(options.generation);
    check_draft_flags(options);
    const decode::EngineOptions engine_flags = engine_options_of(options, io, stop);
    note_inputs(
        {options.draft.model, options.file, options.system_file, options.chat.file, options.chat.tools});
    check_stats_file(options.stats, io);
    if (options.prompt_cache) gguf::refuse_if_read(*options.prompt_cache);
    Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    if (options.verify_drafts) expect_room_for_two(engine.executor());
    const auto drafts = drafting(options.draft, options.model, engine, options.samples, io, stop);
    const std::string text = gather_prompt(options, io, stop);
    const std::optional<Conversation> conversation = conversation_of(options, engine);
    const Conversation *turns = conversation ? &*conversation : nullptr;
    Conversation::Prompt prompt = encode_prompt(options, text, engine, turns, stop, io);
    if (turns) generation.stops.insert(generation.stops.end(), turns->stops().begin(), turns->stops().end());
    const size_t context = static_cast<size_t>(engine.executor().context());
    const Room room{context, options.overflow, prompt.fixed};
    if (const size_t dropped = room.fit(prompt.tokens))
        io.note("the prompt outgrows the context of " + std::to_string(context) +
                " tokens: " + std::to_string(dropped) + " tokens of it are left out");
    generation.shift_keeping = room.keeping();

    if (options.samples > 1 || options.beams > 1)
        return run_many(options, {engine, prompt.tokens, text, sampling, generation, stop, drafts.get()}, io);
    PromptCache cache(options.prompt_cache, options.model, engine, io);
    decode::Session session(engine.executor());
    decode::Sampler sampler = engine.sampler(sampling);
    const decode::Vocabulary vocabulary = turns ? turns->vocabulary() : engine.vocabulary();
    const auto speculator = drafts ? drafts->speculator() : nullptr;
    Generator generator(session, sampler, vocabulary, generation, &stop, speculator.get());
    std::optional<PlainTwin> twin;
    if (options.verify_drafts) twin.emplace(engine, sampler, vocabulary, generation, stop);
    Shown shown(turns, prompt, options, io);
    if (options.echo) shown.add(text);
    generator.start(prompt.tokens);
    if (twin) twin->start(prompt.tokens);
    cache.keep(session, prompt.tokens);
    for (bool going = true; going;) {
        const auto piece = generator.next();
        if (piece) shown.push(*piece);
        if (twin) twin->follow(generator, piece);
        going = piece.has_value();
    }
    shown.end();
    const Report report{
        options.model.path,        sampling.seed,
        engine.load_seconds(),     generator.timings(),
        generator.tokens().size(), std::string(name(generator.finish_reason())),
        engine.placement(),        speculator ? std::optional(speculator->counts()) : std::nullopt};
    if (options.json)
        io.out.write(dump(result_json(generator, shown, report)));
    else if (io.out.is_terminal())
        io.out.write("\n");
    if (generator.forgotten() > 0)
        io.note("the context of " + std::to_string(context) + " tokens was full: " +
                std::to_string(generator.forgotten()) + " tokens were forgotten on the way");
    if (generator.context_full())
        io.note("the context of " + std::to_string(engine.executor().context()) +
                " tokens is full: the text ends here (a larger one with -c)");
    write_stats(options.stats, report, io);
    if (twin && !twin->difference().empty())
        throw decode::DecodeError(decode::DecodeError::Kind::Failed, "--spec-verify: " + twin->difference());
    if (twin) io.note("--spec-verify: " + std::to_string(twin->compared()) + " tokens, no difference");
    return generator.finish_reason() == decode::FinishReason::Interrupt ? exit_code::kInterrupted
                                                                        : exit_code::kDone;
}

}  // namespace runnel::commands
