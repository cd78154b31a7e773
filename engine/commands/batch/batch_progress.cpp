#include "engine/commands/batch/batch_progress.h"

#include <algorithm>

#include "engine/commands/figures.h"

namespace runnel::commands {
std::string progress_line(const BatchState &state) {
    const double done = std::min(state.done, 1.0);
    std::string text = done >= 0 ? progress_bar(done) : "";
    text += std::to_string(state.rows) + (state.rows == 1 ? " row" : " rows");
    if (state.errors > 0) text += " (" + std::to_string(state.errors) + " with errors)";
    if (state.seconds > 0) {
        text += format("  %.0f tokens/s", static_cast<double>(state.tokens) / state.seconds);
    }
    const double now = done - std::max(state.before, 0.0);
    if (now > 0) text += "  " + duration_text(state.seconds * (1 - done) / now) + " left";
    return text;
}

BatchProgress::~BatchProgress() {
    if (drawn_) io_.progress("\r\x1b[K");
}

bool BatchProgress::due() const {
    return shown_ && std::chrono::steady_clock::now() - last_ >= std::chrono::milliseconds(200);
}

void BatchProgress::update(const BatchState &state) {
    if (!due()) return;
    last_ = std::chrono::steady_clock::now();
    drawn_ = true;
    io_.progress("\r" + progress_line(state) + "\x1b[K");
}

}  // namespace runnel::commands
