// Many prompts in, many answers out: lines are read as there is place for them, computed together, written as
// they are done.
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "engine/commands/batch/batch_output.h"
#include "engine/commands/batch/batch_progress.h"
#include "engine/commands/batch/batch_row.h"
#include "engine/commands/chat/conversation.h"
#include "engine/commands/chat/line_reader.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"
#include "engine/decode/answer_batch.h"
#include "engine/decode/error.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

using decode::AnswerBatch;
using decode::Engine;
using decode::StopRequest;
using Clock = std::chrono::steady_clock;

constexpr size_t kLongestLine = size_t{64} << 20;
// Finished lines that wait for one in front of them, per sequence in flight: beyond that no more is read.
constexpr size_t kHeldPerSequence = 64;

Descriptor open_input(const std::optional<std::string> &path, const Io &io) {
    if (!path || *path == "-") return Descriptor(io.in, false);
    Descriptor file(open(path->c_str(), O_RDONLY | O_CLOEXEC), true);
    struct stat status {};
    if (file.get() < 0 || fstat(file.get(), &status) != 0)
        throw UsageError("cannot open " + gguf::printable(*path, 4096) + ": no such file, or not readable");
    if (S_ISDIR(status.st_mode)) throw UsageError(gguf::printable(*path, 4096) + " is a directory");
    return file;
}

std::string name_of(const std::optional<std::string> &path) {
    return path && *path != "-" ? gguf::printable(*path, 4096) : "standard input";
}

// -o must not empty what -i is about to read.
void refuse_same_file(int input, const std::optional<std::string> &output) {
    struct stat in {
    }, out{};
    if (output && fstat(input, &in) == 0 && stat(output->c_str(), &out) == 0 && S_ISREG(in.st_mode) &&
        in.st_dev == out.st_dev && in.st_ino == out.st_ino)
        throw UsageError(gguf::printable(*output, 4096) + " is both input and output");
}

Conversation conversation_of(const BatchOptions &options, const Engine &engine) {
    if (options.raw && options.chat.given()) throw UsageError("--raw completes text without a chat template");
    Conversation conversation(engine.file(), engine.tokenizer(), options.chat);
    if (options.chat.given() && !conversation.has_template())
        throw UsageError("the file has no chat template; --chat-template FILE gives one");
    return conversation;
}

class BatchRun {
  public:
    BatchRun(const BatchOptions &options, Engine &engine, int input, BatchOutput &output, StopRequest &stop,
             Io &io)
        : options_(options),
          engine_(engine),
          io_(io),
          stop_(stop),
          reader_(input, name_of(options.input), kLongestLine),
          output_(output),
          progress_(io),
          conversation_(conversation_of(options, engine)),
          system_(system_prompt(options.system, options.system_file, io.in, &stop)),
          sampling_(sampling_options(options.generation)),
          limits_(generation_options(options.generation)),
          drafts_(drafting(options.draft, options.model, engine, options.parallel, io, stop)),
          batch_(engine.executor(), engine.vocabulary(), options.parallel, speculators()),
          errors_(output.before().failed()) {
        struct stat status {};
        if (fstat(input, &status) == 0 && S_ISREG(status.st_mode))
            size_ = static_cast<uint64_t>(status.st_size);
    }

    int loop() {
        try {
            answer_all();
        } catch (const kernels::BackendError &) {  // a GPU that was lost: what is written stays
            output_.close();
            note_stop();
            throw;
        } catch (const ClosedPipe &) {
            throw OutputError("standard output was closed after " + std::to_string(output_.written()) +
                              " rows: the other answers are not delivered");
        }
        output_.close();
        const bool finished = ended_ && batch_.unfinished() == 0;
        report(finished);
        expect_every_row(finished);
        if (!finished) return exit_code::kInterrupted;
        if (model_failed_) return exit_code::kFailed;
        return errors_ > 0 ? exit_code::kInput : exit_code::kDone;
    }

  private:
    void answer_all() {
        while (!stop_.requested()) {
            read_lines();
            if (batch_.unfinished() == 0 && ended_) break;
            if (batch_.unfinished() > 0 && !batch_.step(&stop_)) break;
            write_finished();
            show_progress();
        }
    }

    void write_finished() {
        for (const AnswerBatch::Finished &answer : batch_.take_finished()) write(answer);
    }

    // Every row that was taken has its line in the output or, after a stop, is known to be unanswered.
    void expect_every_row(bool finished) const {
        const uint64_t open = finished ? 0 : waiting_.size() + output_.held();
        if (output_.missing() != open)
            throw OutputError(std::to_string(output_.missing() - open) + " of " + std::to_string(rows_) +
                              " rows were taken and not written: this is a bug of runnel, the output is "
                              "not complete");
    }

    void note_stop() {
        io_.note("stopped after " + std::to_string(output_.written() + kept_) + " rows" +
                 (options_.output ? ": go on with --resume" : ""));
    }

    struct Waiting {
        RowIdentity row;
        uint64_t bytes;              // of its line
        int64_t left_out = 0;        // tokens of the prompt
        bool is_turn = false;        // the answer belongs to a conversation,
        bool begins_inside = false;  // and begins within the model's reasoning
    };

    decode::MakeSpeculator speculators() const {
        if (!drafts_) return {};
        return [drafts = drafts_.get()]() { return drafts->speculator(); };
    }

    // As many as keep the scheduler supplied; waits for input only when there is nothing else to do.
    void read_lines() {
        const size_t parallel = static_cast<size_t>(options_.parallel);
        while (!ended_ && !stop_.requested() && batch_.unfinished() < 2 * parallel &&
               output_.held() < kHeldPerSequence * parallel) {
            constexpr int kPatience = 100;  // milliseconds, then the stop request is looked at again
            const auto state = reader_.next(line_, batch_.unfinished() == 0 ? kPatience : 0);
            ended_ = state == LineReader::State::End;
            if (state == LineReader::State::NotYet && batch_.unfinished() > 0) return;
            if (state == LineReader::State::Line) take(line_);
        }
    }

    void take(const std::string &line) {
        const int64_t number = reader_.number();
        const uint64_t bytes = reader_.offset() - std::exchange(read_, reader_.offset());
        const bool mine = (number - 1) % options_.shard.parts == options_.shard.part - 1;
        const bool blank = line.find_first_not_of(" \t") == std::string::npos;
        if (!mine || blank) {
            answered_bytes_ += bytes;
            return;
        }
        ++rows_;
        Row row = options_.lines ? text_row(line, number) : parse_row(line, number);
        if (reader_.cut())
            row.error = "the line is longer than " + std::to_string(kLongestLine >> 20) + " MiB";
        for (const std::string &key : row.unknown) note_unknown(key, number);
        if (is_written(row.identity)) {
            answered_bytes_ += bytes;
            kept_bytes_ += bytes;
            return;
        }
        const uint64_t place = output_.reserve();
        waiting_.emplace(place, Waiting{row.identity, bytes});
        if (row.error.empty()) submit(row, place);
        if (!row.error.empty()) fail(place, row.error);
        write_finished();  // submit() finishes a row that wants no token or does not fit
    }

    // Once per key, and for the first ones only: rows may carry any data of their own.
    void note_unknown(const std::string &key, int64_t line) {
        constexpr size_t kMost = 16;
        if (unknown_keys_.size() < kMost && unknown_keys_.insert(key).second)
            io_.note("line " + std::to_string(line) + ": the key " + gguf::quoted(key) +
                     " has no meaning here");
    }

    // By an earlier run.
    bool is_written(const RowIdentity &row) {
        const WrittenRow *before = output_.before().find(row.line);
        if (!before) {
            if (!options_.unordered && row.line < output_.before().last())
                throw UsageError("the output has later lines than " + std::to_string(row.line) +
                                 ", but not that one: resume it with the --shard and --unordered of before");
            return false;
        }
        if (before->id != row.id)
            throw InputError("line " + std::to_string(row.line) + " of " + name_of(options_.input) +
                             " has another id than the output says: was it written for another input?");
        ++kept_;
        return true;
    }

    // What goes wrong is the row's error.
    void submit(Row &row, uint64_t place) {
        try {
            decode::GenerationOptions limits = limits_;
            Conversation::Prompt prompt;
            Waiting &waiting = waiting_.at(place);
            waiting.is_turn = is_turn(row.request);
            if (waiting.is_turn)
                encode_turn(row.request, prompt, limits);
            else
                encode_text(row.request, prompt);
            waiting.begins_inside = prompt.begins_inside;
            const Room room{static_cast<size_t>(engine_.executor().context()), options_.overflow,
                            prompt.fixed};
            waiting.left_out = static_cast<int64_t>(room.fit(prompt.tokens));
            limits.shift_keeping = room.keeping();
            if (row.request.max_tokens) limits.max_tokens = *row.request.max_tokens;
            limits.stops.insert(limits.stops.end(), row.request.stops.begin(), row.request.stops.end());
            decode::SamplingOptions sampling = sampling_;
            row.request.apply(sampling);
            sampling.seed = row.request.seed.value_or(sampling.seed);
            decode::Sampler sampler = engine_.sampler(sampling);
            // Rows that name no seed share one, and are to differ nevertheless.
            if (!row.request.seed) sampler.set_stream(static_cast<uint32_t>(row.identity.line));
            if (prompt.tokens.empty()) throw InputError("the prompt is empty: it has no tokens");
            batch_.submit({.key = place,
                           .prompt = std::move(prompt.tokens),
                           .sampler = std::move(sampler),
                           .options = std::move(limits),
                           .vocabulary = waiting.is_turn ? vocabulary_ : decode::Vocabulary()});
        } catch (const std::runtime_error &error) {
            row.error = error.what();
        }
    }

    // The row is a turn of a conversation; otherwise a text to be completed as it stands.
    bool is_turn(const RowRequest &request) const {
        return !request.prompt || !(request.raw || options_.raw || !conversation_.has_template());
    }

    void encode_text(const RowRequest &request, Conversation::Prompt &prompt) const {
        if (request.prompt->empty()) throw InputError("the prompt is empty");
        if (!request.raw && !system_.empty())
            throw UsageError("there is no place for a system prompt without a chat template");
        prompt.tokens = engine_.tokenizer().encode(*request.prompt);
        prompt.fixed = engine_.tokenizer().adds_bos() ? 1 : 0;
    }

    void encode_turn(const RowRequest &request, Conversation::Prompt &prompt,
                     decode::GenerationOptions &limits) {
        if (request.prompt && request.prompt->empty()) throw InputError("the prompt is empty");
        std::vector<text::Message> messages = request.messages;
        if (request.prompt) messages.push_back({"user", *request.prompt});
        if (!system_.empty() && messages.front().role != "system")
            messages.insert(messages.begin(), {"system", system_});
        if (!std::exchange(noted_, true) && !conversation_.note().empty()) io_.note(conversation_.note());
        limits.stops.insert(limits.stops.end(), conversation_.stops().begin(), conversation_.stops().end());
        prompt = conversation_.prompt(messages);
        if (options_.overflow != Overflow::Error) prompt.fixed = conversation_.fixed_tokens(messages);
    }

    void write(const AnswerBatch::Finished &answer) {
        if (!answer.error.empty()) {
            model_failed_ |= !answer.bad_input;
            return fail(answer.key, answer.error);
        }
        const Waiting &waiting = waiting_.at(answer.key);
        AnswerText text(waiting.is_turn ? &conversation_ : nullptr, {{}, waiting.begins_inside, 0},
                        options_.show_thinking);
        AnswerBatch::Finished shown = answer;
        shown.text = text.push(answer.text);
        shown.text += text.end();
        shown.forgotten += waiting.left_out;
        forgotten_ += shown.forgotten;
        finish(answer.key, answer_line(waiting.row, shown, options_.model.path, text.reasoning()));
    }

    void fail(uint64_t place, const std::string &error) {
        ++errors_;
        finish(place, error_line(waiting_.at(place).row, error));
    }

    void finish(uint64_t place, std::string line) {
        output_.put(place, std::move(line));
        const auto done = waiting_.find(place);
        answered_bytes_ += done->second.bytes;
        waiting_.erase(done);
    }

    double seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

    void show_progress() {
        if (!progress_.due()) return;
        const auto share = [&](uint64_t bytes) { return size_ > 0 ? double(bytes) / double(size_) : -1; };
        progress_.update({output_.written() + kept_, errors_, batch_.counts().sampled_tokens,
                          share(answered_bytes_), share(kept_bytes_), seconds()});
    }

    Json stats() const {
        const AnswerBatch::Counts &counts = batch_.counts();
        const decode::SchedulerCounts &schedule = batch_.schedule();
        const double time = seconds();
        Json json = {{"program", "runnel"},
                     {"model", options_.model.path},
                     {"seed", sampling_.seed},
                     {"rows", rows_},
                     {"written", output_.written()},
                     {"written_before", kept_},
                     {"errors", errors_},
                     {"prompt_tokens", counts.prompt_tokens},
                     {"reused_tokens", engine_.executor().cache().statistics().reused_tokens},
                     {"completion_tokens", counts.generated_tokens},
                     {"forgotten_tokens", forgotten_},
                     {"computed_tokens", schedule.tokens},
                     {"steps", schedule.steps},
                     {"sequences_per_step",
                      schedule.steps > 0 ? double(schedule.sequences) / double(schedule.steps) : 0.0},
                     {"preemptions", schedule.preemptions},
                     {"load_ms", engine_.load_seconds() * 1e3},
                     {"seconds", time},
                     {"completion_tps", time > 0 ? double(counts.generated_tokens) / time : 0.0}};
        if (drafts_) json["speculation"] = speculation_json(batch_.speculation());
        return json;
    }

    static std::string stats_text(const Json &s) {
        char text[640];
        std::snprintf(text, sizeof text,
                      "rows     %9lld  (%lld written now, %lld before, %lld with errors)\n"
                      "prompts  %9lld  tokens (%lld from the cache)\n"
                      "answers  %9lld  tokens, %.1f tokens/s\n"
                      "computed %9lld  tokens in %lld steps of %.1f sequences, %lld preemptions\n"
                      "time     %9.1f  s, and %.0f ms to load; seed %llu\n",
                      s["rows"].get<long long>(), s["written"].get<long long>(),
                      s["written_before"].get<long long>(), s["errors"].get<long long>(),
                      s["prompt_tokens"].get<long long>(), s["reused_tokens"].get<long long>(),
                      s["completion_tokens"].get<long long>(), s["completion_tps"].get<double>(),
                      s["computed_tokens"].get<long long>(), s["steps"].get<long long>(),
                      s["sequences_per_step"].get<double>(), s["preemptions"].get<long long>(),
                      s["seconds"].get<double>(), s["load_ms"].get<double>(),
                      s["seed"].get<unsigned long long>());
        return text;
    }

    void report(bool finished) {
        const Json numbers = stats();
        const std::string drafts = drafts_ ? speculation_text(batch_.speculation()) : std::string();
        write_stats(options_.stats, stats_text(numbers) + drafts, numbers, io_);
        if (errors_ > 0)
            io_.note(std::to_string(errors_) + (errors_ == 1 ? " row has an error" : " rows have errors"));
        if (forgotten_ > 0)
            io_.note("texts outgrew the context: " + std::to_string(forgotten_) +
                     " tokens were left out or forgotten (\"forgotten_tokens\" of their rows)");
        if (!finished) note_stop();
    }

    const BatchOptions &options_;
    Engine &engine_;
    Io &io_;
    StopRequest &stop_;
    LineReader reader_;
    BatchOutput &output_;
    BatchProgress progress_;
    Conversation conversation_;
    decode::Vocabulary vocabulary_ = conversation_.vocabulary();  // of turns
    std::string system_;
    decode::SamplingOptions sampling_;
    decode::GenerationOptions limits_;
    std::unique_ptr<decode::Drafting> drafts_;  // or none
    AnswerBatch batch_;
    Clock::time_point started_ = Clock::now();
    std::string line_;
    std::map<uint64_t, Waiting> waiting_;  // submitted or held, by place
    std::set<std::string> unknown_keys_;   // of rows, noted
    bool noted_ = false;                   // that the conversation's shape is a guess
    bool ended_ = false;                   // the input
    uint64_t size_ = 0, read_ = 0, answered_bytes_ = 0, kept_bytes_ = 0;  // of the input
    int64_t rows_ = 0, kept_ = 0, errors_ = 0, forgotten_ = 0;
    bool model_failed_ = false;  // for some row
};

}  // namespace

int batch(const BatchOptions &options, Io &io) {
    StopRequest stop;
    const InterruptScope interrupts(stop);
    std::optional<decode::DeadlineTimer> deadline;
    if (options.generation.deadline)
        deadline.emplace(stop, std::chrono::duration<double>(*options.generation.deadline));
    const Descriptor input = open_input(options.input, io);
    refuse_same_file(input.get(), options.output);
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    leave_room(engine_flags, options.draft);
    engine_flags.sequences = options.parallel;
    note_inputs(
        {options.input, options.draft.model, options.system_file, options.chat.file, options.chat.tools});
    check_stats_file(options.stats, io);
    Engine engine(engine_flags);
    for (const std::string &note : engine.notes()) io.note(note);
    BatchOutput output(options.output, {options.resume, io.overwrite, !options.unordered});
    return BatchRun(options, engine, input.get(), output, stop, io).loop();
}

}  // namespace runnel::commands
