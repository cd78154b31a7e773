#include "engine/commands/figures.h"

#include <algorithm>
#include <cmath>

namespace runnel::commands {

std::string size_text(uint64_t bytes, int decimals) {
    const auto size = static_cast<double>(bytes);
    if (size >= 0x1p30) return format("%.*f GiB", decimals, size / 0x1p30);
    return size >= 0x1p20 ? format("%.1f MiB", size / 0x1p20) : format("%.1f KiB", size / 0x1p10);
}

std::string duration_text(double seconds) {
    const auto s = static_cast<long long>(std::clamp(std::ceil(seconds), 0.0, 1e9));
    return s < 3600 ? format("%lld:%02lld", s / 60, s % 60)
                    : format("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
}

std::string progress_bar(double done) {
    constexpr size_t kWidth = 24;
    const double share = std::clamp(done, 0.0, 1.0);
    const auto full = static_cast<size_t>(share * kWidth);
    return "[" + std::string(full, '#') + std::string(kWidth - full, '-') + "] " +
           format("%3.0f%%  ", std::floor(share * 100));
}

}  // namespace runnel::commands
