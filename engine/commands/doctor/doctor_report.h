// The findings of `runnel doctor`, one line each, and the conclusion.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/commands/json.h"

namespace runnel::commands {

struct Finding {
    enum class Area { File, Cpu, Gpu, Text };
    enum class Verdict {
        Right,
        Slow,      // right, but far below the memory's bandwidth
        Note,      // worth knowing, no fault
        Skipped,   // not checked; the detail says why
        Varies,    // right, but its bits depend on the rest of the batch
        Unstable,  // the same work gave different results
        Wrong,
        Failed,  // no result at all
    };
    enum class Role {
        Other,
        Step,     // a step of a program, compared with the reference
        Summary,  // of other findings
    };
    Area area;
    std::string subject;  // "matrix q4_K 4096 x 14336"
    Verdict verdict;
    std::string detail = {};        // "error 3e-05, 812 GB/s"
    Json numbers = Json::object();  // the numbers of `detail`, for programs
    Role role = Role::Other;
    // A remedy for a fault that this finding alone identifies, as a full sentence: "Install a current NVIDIA
    // driver."; empty: conclude() decides from all findings.
    std::string remedy = {};
    std::string device = {};  // "cpu", "cuda:0"; empty: the file
};

std::string_view name_of(Finding::Area area);
std::string_view name_of(Finding::Verdict verdict);
bool is_fault(Finding::Verdict verdict);

// "right   matrix q4_K 4096 x 14336      error 3e-05\n"
std::string line_of(const Finding &finding);

struct Conclusion {
    // The part at fault: "none", "file" (damaged, or not a model that this program runs), "cpu", "gpu" (its
    // memory or arithmetic), "driver", "kernel" (a part of this program, on this device).
    std::string fault;
    std::string text;  // advice for the user; may have several lines
    int exit_code;
};
Conclusion conclude(const std::vector<Finding> &findings);

Json to_json(const std::vector<Finding> &findings, const Conclusion &conclusion);

}  // namespace runnel::commands
