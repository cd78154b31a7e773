// Characters as nodes of a program: UTF-8, and the spellings of a character inside a JSON string.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/grammar/program.h"

namespace runnel::grammar {

// A range of characters (or code units) and the node they lead to. Maps are ascending, without overlap.
struct CharTarget {
    uint32_t first, last, target;
    auto operator<=>(const CharTarget &) const = default;
};
using CharMap = std::vector<CharTarget>;

// Adds nodes to a program; equal Switches become one node.
class CharNodes {
  public:
    explicit CharNodes(Program &program) : program_(program) {}

    uint32_t add(Program::Node node);
    // Edges in any order, without overlap.
    uint32_t add_switch(std::vector<CharTarget> edges);
    uint32_t add_split(const std::vector<uint32_t> &targets);
    uint32_t add_bytes(std::string_view bytes, uint32_t next);
    uint32_t add_chars(const CharMap &map, Spelling spelling);

  private:
    void utf8_edges(const CharMap &map, std::vector<CharTarget> &edges);
    uint32_t continuation(const CharMap &map, int bytes);
    uint32_t escape(const CharMap &map);
    uint32_t hex(const CharMap &map, int digits);

    Program &program_;
    std::map<std::vector<CharTarget>, uint32_t> switches_;
    std::map<std::pair<int, CharMap>, uint32_t> continuations_, hex_;
};

}  // namespace runnel::grammar
