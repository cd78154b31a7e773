#include "engine/commands/load_progress.h"

#include <cstdio>
#include <memory>

#include "engine/commands/figures.h"

namespace runnel::commands {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

class LoadBar {
  public:
    LoadBar(Io &io, const decode::StopRequest &stop) : io_(io), stop_(stop) {}
    ~LoadBar() { clear(); }
    LoadBar(const LoadBar &) = delete;
    LoadBar &operator=(const LoadBar &) = delete;

    bool update(size_t done, size_t all) {
        const auto now = Clock::now();
        if (done == all || stop_.reason() == decode::StopRequest::Reason::Interrupt) {
            clear();
            return done == all;
        }
        if (start_ == Clock::time_point{}) start_ = now;
        const bool shown = io_.err.is_terminal() && !io_.quiet;
        if (shown && now - start_ >= 1s && now - last_ >= 200ms) {
            last_ = now;
            drawn_ = true;
            const std::chrono::duration<double> seconds = now - start_;
            io_.progress("\r" + load_line(done, all, seconds.count()) + "\x1b[K");
        }
        return true;
    }

  private:
    void clear() {
        if (drawn_) io_.progress("\r\x1b[K");
        drawn_ = false;
        start_ = {};  // measures the time of the next program anew
    }

    Io &io_;
    const decode::StopRequest &stop_;
    Clock::time_point start_{}, last_{};
    bool drawn_ = false;
};

}  // namespace

std::string load_line(size_t done, size_t all, double seconds) {
    const double share = all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 1;
    char text[96];
    std::snprintf(text, sizeof text, "%.1f of %.1f GiB  %.1f GB/s", static_cast<double>(done) / 0x1p30,
                  static_cast<double>(all) / 0x1p30,
                  seconds > 0 ? static_cast<double>(done) / seconds / 1e9 : 0);
    return "loading " + progress_bar(share) + text;
}

kernels::LoadProgress load_progress(Io &io, const decode::StopRequest &stop) {
    return [bar = std::make_shared<LoadBar>(io, stop)](size_t done, size_t all) {
        return bar->update(done, all);
    };
}

}  // namespace runnel::commands
