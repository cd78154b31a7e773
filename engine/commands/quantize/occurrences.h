// Notes that name the first of several matrices.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace runnel::commands {

inline std::string plural(size_t count, const std::string &one, const std::string &many) {
    return std::to_string(count) + " " + (count == 1 ? one : many);
}

// How often something happened, and the first matrix it happened to.
struct Occurrences {
    size_t count = 0;
    std::string first;

    void add(const std::string &name) {
        if (count++ == 0) first = name;
    }
    // "gptq: 3 matrices (tensor blk.0.ffn_up.weight, ...): WHAT"
    void report(std::vector<std::string> &notes, const std::string &method, const std::string &what,
                const std::string &one = "matrix", const std::string &many = "matrices") const {
        if (count > 0)
            notes.push_back(method + ": " + plural(count, one, many) + " (" + first +
                            (count > 1 ? ", ..." : "") + "): " + what);
    }
};

}  // namespace runnel::commands
