// What `runnel doctor` found, a line each, and what follows from all of it.
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
        Slow,      // right, but far from what the memory gives
        Note,      // worth knowing, no fault
        Skipped,   // not looked at; the detail says why
        Varies,    // right, but its bits depend on what is computed beside it
        Unstable,  // another result every time
        Wrong,
        Failed,  // the device gave no result at all
    };
    enum class Role {
        Other,
        Step,     // a step of a program, held against plain arithmetic
        Summary,  // of other findings
    };
    Area area;
    std::string subject;  // "matrix q4_K 4096 x 14336"
    Verdict verdict;
    std::string detail = {};        // "error 3e-05, 812 GB/s"
    Json numbers = Json::object();  // what the detail says, for programs
    Role role = Role::Other;
    // What the user can do about a fault that this finding alone tells all of, as a sentence of its own:
    // "Install a current NVIDIA driver."; empty: what follows from all findings (conclude()).
    std::string remedy = {};
    std::string device = {};  // "cpu", "cuda:0"; empty: the file
};

std::string_view name_of(Finding::Area area);
std::string_view name_of(Finding::Verdict verdict);
bool is_fault(Finding::Verdict verdict);

// "right   matrix q4_K 4096 x 14336      error 3e-05\n"
std::string line_of(const Finding &finding);

struct Conclusion {
    // Who is at fault: "none", "file" (damaged, or no model that this program runs), "cpu", "gpu" (its memory
    // or arithmetic), "driver", "kernel" (a part of this program, on this device).
    std::string fault;
    std::string text;  // what the user can do; may be several lines
    int exit_code;
};
Conclusion conclude(const std::vector<Finding> &findings);

Json to_json(const std::vector<Finding> &findings, const Conclusion &conclusion);

}  // namespace runnel::commands
