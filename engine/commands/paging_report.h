// Tables, maps and JSON of the ways to allocate a KV cache, for `batch --explain` and `bench --trace`.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/commands/json.h"
#include "engine/measure/paging.h"

namespace runnel::commands {

struct AllocationNames {
    const char *key = "", *shown = "";  // in JSON ("limit"), and in tables ("limits reserved")
};
AllocationNames names_of(measure::Allocation how);

// A header of two lines, one line for a replay, and what the columns mean, for 80 columns.
std::string replay_header();
std::string replay_row(measure::Allocation how, const measure::PagingReplay &replay);
std::string replay_legend();
Json replay_json(measure::Allocation how, const measure::PagingReplay &replay);

// A character per page, 64 to a line; of a large memory each character stands for several pages and shows the
// greatest of their values. Values index `marks` and are below 4; 0 is free. Pages behind the last one that is not
// free are counted only, up to `all`.
struct PageMarks {
    const char *ascii[4], *blocks[4], *meaning[4];
};
std::string page_map(std::span<const uint8_t> pages, size_t all, const PageMarks &marks, bool ascii);

}  // namespace runnel::commands
