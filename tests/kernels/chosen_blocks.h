// What an Indexer must choose by given scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/program.h"

namespace runnel::tests {

// Step 5 of Indexer for one list, from the scores of all cells up to the token's own.
inline std::vector<float> chosen_blocks(const kernels::Indexer &step, std::span<const float> scores) {
    const auto block = static_cast<size_t>(step.block), top_k = static_cast<size_t>(step.top_k);
    if (step.pooled) {
        // As a choice among single cells, of the scores of whole blocks; then the unfinished block.
        std::vector<float> last;
        for (size_t cell = block - 1; cell < scores.size(); cell += block) last.push_back(scores[cell]);
        kernels::Indexer cells = step;
        cells.pooled = false, cells.block = 1, cells.top_k = step.top_k - 1;
        std::vector<float> chosen = chosen_blocks(cells, last);
        const auto end = std::ranges::find(chosen, -1.0f);
        if (scores.size() % block != 0) chosen.insert(end, static_cast<float>(last.size()));
        chosen.resize(top_k, -1);
        return chosen;
    }
    std::vector<float> of_blocks;
    for (size_t first = 0; first < scores.size(); first += block) {
        float largest = NAN;
        for (const float score : scores.subspan(first, std::min(block, scores.size() - first)))
            if (std::isnan(largest) || score > largest) largest = score;
        of_blocks.push_back(largest);
    }
    std::vector<int32_t> blocks(of_blocks.size());
    std::iota(blocks.begin(), blocks.end(), 0);
    const auto others = blocks.end() - std::min<std::ptrdiff_t>(step.local, std::ssize(blocks));
    std::stable_sort(blocks.begin(), others, [&](int32_t a, int32_t b) {
        const float x = of_blocks[static_cast<size_t>(a)], y = of_blocks[static_cast<size_t>(b)];
        return std::isnan(y) ? !std::isnan(x) : x > y;
    });
    std::rotate(blocks.begin(), others, blocks.end());
    blocks.resize(std::min(blocks.size(), top_k));
    std::ranges::sort(blocks);
    blocks.resize(top_k, -1);
    return {blocks.begin(), blocks.end()};
}

}  // namespace runnel::tests
