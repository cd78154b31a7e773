#include "engine/commands/chat/chat_header.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/commands/chat/conversation_text.h"
#include "engine/commands/chat/edit/cells.h"
#include "engine/commands/figures.h"
#include "engine/commands/weight_type.h"

namespace runnel::commands {
namespace {

constexpr int kShortName = 24, kGap = 2;

struct Part {
    std::string text;
    int rank;  // the part with the highest rank is left out first
};

// "all layers on the GPU, ..." becomes "on the GPU": /stats shows the rest.
std::string short_placement(const std::string &placement) {
    constexpr std::string_view kAll = "all layers ";
    const std::string first = placement.substr(0, placement.find(','));
    return first.starts_with(kAll) ? first.substr(kAll.size()) : first;
}

int width_of(const std::vector<Part> &parts) {
    int width = -kGap;
    for (const Part &part : parts) width += kGap + text_width(part.text);
    return width;
}

void fit_name(std::vector<Part> &parts, int columns, int shortest) {
    const int others = width_of(parts) - text_width(parts[0].text);
    parts[0].text = clipped(parts[0].text, static_cast<size_t>(std::max(columns - others, shortest)));
}

}  // namespace

ChatHeader header_of(decode::Engine &engine) {
    const gguf::File &file = engine.file();
    const gguf::Value *value = file.find("general.name");
    std::string name(value ? value->as_string().value_or("") : "");
    if (name.find_first_not_of(" \t\r\n") == std::string::npos) name = file.path().stem().string();
    ChatHeader header{clipped(name, 200), weight_type(file), 0, engine.placement(),
                      engine.executor().context()};
    for (const gguf::Tensor &tensor : file.tensors()) header.bytes += tensor.bytes;
    return header;
}

std::string header_line(const ChatHeader &header, int columns, bool colors) {
    std::vector<Part> parts = {
        {header.name, 0},
        {header.type, 1},
        {size_text(header.bytes, 1), 3},
        {short_placement(header.placement), 4},
        {"context " + grouped(static_cast<size_t>(std::max<int64_t>(header.context, 0))), 2},
        {"/help for help", 5}};
    fit_name(parts, columns, kShortName);
    while (parts.size() > 2 && width_of(parts) > columns)
        parts.erase(std::ranges::max_element(parts, {}, &Part::rank));
    fit_name(parts, columns, 1);
    std::string line = colors ? "\x1b[1m" + parts[0].text + "\x1b[22;2m" : parts[0].text;
    for (size_t i = 1; i < parts.size(); ++i) line += std::string(kGap, ' ') + parts[i].text;
    return colors ? line + "\x1b[0m" : line;
}

}  // namespace runnel::commands
