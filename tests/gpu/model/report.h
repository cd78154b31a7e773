// The part of tests/gpu/PREDICTIONS.md that the cost model writes.
#pragma once

#include <string>

#include "tests/gpu/model/code.h"

namespace runnel::tests::model {

// The lines between which it stands.
inline constexpr const char *kReportBegin = "<!-- written by scripts/predict -->";
inline constexpr const char *kReportEnd = "<!-- end of what scripts/predict writes -->";

// measured: the kernels as they were when a device ran them (measured.txt).
std::string report(const CodeTable &code, const CodeTable &measured);

// The text with what is between the lines replaced. Throws std::runtime_error if it lacks them.
std::string with_report(const std::string &text, const std::string &report);

}  // namespace runnel::tests::model
