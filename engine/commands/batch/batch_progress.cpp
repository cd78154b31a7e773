#include "engine/commands/batch/batch_progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace runnel::commands {
namespace {

std::string duration(double seconds) {
    const auto s = static_cast<int64_t>(std::clamp(std::ceil(seconds), 0.0, 1e9));
    char text[32];
    if (s < 3600)
        std::snprintf(text, sizeof text, "%d:%02d", static_cast<int>(s / 60), static_cast<int>(s % 60));
    else
        std::snprintf(text, sizeof text, "%lld:%02d:%02d", static_cast<long long>(s / 3600),
                      static_cast<int>(s / 60 % 60), static_cast<int>(s % 60));
    return text;
}

}  // namespace

std::string progress_bar(double done) {
    constexpr size_t kWidth = 24;
    const auto full = static_cast<size_t>(std::clamp(done, 0.0, 1.0) * kWidth);
    char percent[16];
    std::snprintf(percent, sizeof percent, "%3.0f%%  ", std::floor(std::clamp(done, 0.0, 1.0) * 100));
    return "[" + std::string(full, '#') + std::string(kWidth - full, '-') + "] " + percent;
}

std::string progress_line(const BatchState &state) {
    const double done = std::min(state.done, 1.0);
    std::string text = done >= 0 ? progress_bar(done) : "";
    text += std::to_string(state.rows) + (state.rows == 1 ? " row" : " rows");
    if (state.errors > 0) text += " (" + std::to_string(state.errors) + " with errors)";
    if (state.seconds > 0) {
        char rate[48];
        std::snprintf(rate, sizeof rate, "  %.0f tokens/s",
                      static_cast<double>(state.tokens) / state.seconds);
        text += rate;
    }
    const double now = done - std::max(state.before, 0.0);
    if (now > 0) text += "  " + duration(state.seconds * (1 - done) / now) + " left";
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
