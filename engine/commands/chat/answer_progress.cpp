#include "engine/commands/chat/answer_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

#include "engine/commands/chat/edit/cells.h"
#include "engine/commands/chat/line_editor.h"
#include "engine/commands/chat/terminal_lines.h"
#include "engine/commands/figures.h"

namespace runnel::commands {
namespace {

std::string counted(size_t tokens) {
    return grouped(tokens) + (tokens == 1 ? " token" : " tokens");
}

}  // namespace

std::string reading_line(const completion::Prefill &state, double seconds) {
    const int64_t all = std::max<int64_t>(state.all - state.from_cache, 1);
    const int64_t done = std::clamp<int64_t>(state.done - state.from_cache, 0, all);
    char rest[64] = "";
    if (done > 0)
        std::snprintf(rest, sizeof rest, "  %.0f s left",
                      std::ceil(seconds * static_cast<double>(all - done) / static_cast<double>(done)));
    return "reading " + grouped(static_cast<size_t>(all)) + " tokens  " + std::to_string(done * 100 / all) +
           "%" + rest;
}

std::string answer_line(const completion::Done &done, int64_t context) {
    const size_t tokens = done.usage.completion_tokens;
    char rate[64] = "";
    if (done.timings.decode_rate() > 0)
        std::snprintf(rate, sizeof rate, "  %.1f tokens/s", done.timings.decode_rate());
    const auto gone = static_cast<size_t>(std::max<int64_t>(done.usage.forgotten, 0));
    const size_t used = done.usage.prompt_tokens + tokens;
    return counted(tokens) + rate + "  context " + grouped(used - std::min(used, gone)) + " of " +
           grouped(static_cast<size_t>(std::max<int64_t>(context, 0)));
}

std::string thought_line(double seconds) {
    seconds = std::max(seconds, 0.1);
    return "thought for " +
           (seconds < 60 ? format(seconds < 10 ? "%.1f s" : "%.0f s", seconds) : duration_text(seconds));
}

std::string ThinkingLine::dim(const std::string &text) const {
    return colors_ ? "\x1b[2m" + text + "\x1b[0m" : text;
}

std::string ThinkingLine::update(size_t tokens) {
    constexpr std::string_view kThinking = "thinking...";
    if (!terminal_moves()) return std::exchange(began_, true) ? "" : std::string(kThinking);
    const auto room = static_cast<size_t>(std::max(window_size(STDOUT_FILENO).columns - 1, 1));
    const std::string line = std::string(kThinking) + " " + counted(tokens);
    return "\r" + dim(line.size() <= room ? line : line.substr(0, std::min(room, kThinking.size()))) +
           "\x1b[K";
}

std::string ThinkingLine::end(size_t tokens, double seconds) {
    const std::string time = thought_line(seconds);
    if (terminal_moves()) return "\r" + dim(time) + "\x1b[K";
    return " " + counted(tokens) + ", " + time.substr(std::string_view("thought for ").size());
}

std::string ThinkingLine::clear() const {
    return terminal_moves() ? "\r\x1b[K" : "\n";
}

void ReadingProgress::show(const completion::Prefill &state) {
    const double seconds = base::seconds_since(start_);
    if (state.done >= state.all) return clear();
    if (seconds < 1 || !io_.err.is_terminal() || !terminal_moves()) return;
    const auto room = static_cast<size_t>(std::max(window_size(STDERR_FILENO).columns - 1, 1));
    io_.progress("\r" + reading_line(state, seconds).substr(0, room) + "\x1b[K");
    drawn_ = true;
}

void ReadingProgress::clear() {
    if (drawn_) io_.progress("\r\x1b[K");
    drawn_ = false;
}

void show_answer_line(const completion::Done &done, int64_t context, bool colors, Io &io) {
    if (!isatty(io.in) || !io.out.is_terminal() || !io.err.is_terminal()) return;
    const std::string line = answer_line(done, context);
    io.progress(colors ? "\x1b[2m" + line + "\x1b[0m\n" : line + "\n");
}

}  // namespace runnel::commands
