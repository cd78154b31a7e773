#include "engine/commands/run/attention_picture.h"

#include <algorithm>
#include <cmath>

#include "engine/commands/arguments.h"
#include "engine/commands/figures.h"
#include "engine/commands/plot/svg.h"
#include "engine/commands/plot/token_text.h"

namespace runnel::commands {
namespace {

using kernels::AttentionMap;

constexpr size_t kMostHeads = 16;

// A map reduced to at most `most` rows: each cell shows the largest weight in a square of tokens.
struct Pooled {
    size_t rows, tokens;  // tokens: along the side of a square
    std::vector<double> weights;

    Pooled(const AttentionMap &map, size_t head, size_t most)
        : rows(0), tokens((map.tokens + most - 1) / most) {
        rows = (map.tokens + tokens - 1) / tokens;
        weights.resize(rows * rows);
        for (size_t query = 0; query < map.tokens; ++query)
            for (size_t key = 0; key <= query; ++key) {
                double &cell = weights[query / tokens * rows + key / tokens];
                cell = std::max(cell, map.weight(head, query, key));
            }
    }
    double at(size_t query, size_t key) const { return weights[query * rows + key]; }
};

// From white to dark blue. The root makes small weights visible.
std::string color_of(double weight) {
    const double dark = std::sqrt(std::clamp(weight, 0.0, 1.0));
    const auto mix = [&](double to) { return static_cast<int>(std::lround(255 + (to - 255) * dark)); };
    return format("#%02x%02x%02x", mix(0), mix(58), mix(120));
}

std::string drawn_head(const Pooled &cells, double left, double top, double side) {
    const double cell = side / static_cast<double>(cells.rows);
    std::string text = svg_rectangle(left, top, side, side, "#fff", " stroke=\"#bbb\"");
    for (size_t query = 0; query < cells.rows; ++query)
        for (size_t key = 0; key <= query; ++key)
            if (cells.at(query, key) >= 0.005)
                text += svg_rectangle(left + static_cast<double>(key) * cell,
                                      top + static_cast<double>(query) * cell, cell, cell,
                                      color_of(cells.at(query, key)));
    return text;
}

std::string headline(const AttentionPicture &picture) {
    double share = 0;
    for (const size_t head : picture.heads)
        share += first_token_share(picture.map, head) / static_cast<double>(picture.heads.size());
    const std::string heads =
        picture.heads.size() == 1 ? format("head %zu", picture.heads[0]) : "the heads shown";
    return format("Layer %d: %.0f%% of the attention of %s goes to the first token", picture.map.layer,
                  100 * share, heads.c_str());
}

std::string seen(const AttentionMap &map) {
    if (map.window == 0) return "every token sees all tokens before it";
    std::string text = format("every token sees the last %d tokens", map.window);
    if (map.sink_cells > 0) text += format(" and the first %d", map.sink_cells);
    return text;
}

std::string scale_of_weights(double left, double top) {
    std::string text = svg_text(left, top + 11, "start", "weight");
    double x = left + 56;
    for (const double weight : {0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0}) {
        text += svg_rectangle(x, top, 16, 14, color_of(weight), " stroke=\"#bbb\"");
        text += svg_text(x + 21, top + 11, "start", format("%g", weight));
        x += 68;
    }
    return text;
}

// The picture of one head; up to 48 tokens are written at its sides.
std::string one_head(const AttentionPicture &picture) {
    constexpr double kSide = 560, kLeft = 140, kTop = 70;
    const Pooled cells(picture.map, picture.heads[0], kMostMapTokens);
    const bool has_labels = picture.labels.size() <= 48;
    const double below = has_labels ? 110 : 30;
    std::string text = svg_begin(760, kTop + kSide + below + 40);
    text += drawn_head(cells, kLeft, kTop, kSide);
    const double cell = kSide / static_cast<double>(picture.labels.size());
    for (size_t i = 0; i < picture.labels.size() && has_labels; ++i) {
        const double at = (static_cast<double>(i) + 0.5) * cell;
        const std::string size = " font-size=\"11\" xml:space=\"preserve\"";
        text += svg_text(kLeft - 6, kTop + at + 4, "end", picture.labels[i], size);
        const double x = kLeft + at + 4, y = kTop + kSide + 8;
        text += svg_text(x, y, "end", picture.labels[i],
                         size + " transform=\"rotate(-90 " + svg_number(x) + " " + svg_number(y) + ")\"");
    }
    if (!has_labels) {
        text += svg_text(kLeft + kSide / 2, kTop + kSide + 20, "middle", "token of the key");
        text += svg_text(
            kLeft - 12, kTop + kSide / 2, "middle", "token of the query",
            " transform=\"rotate(-90 " + svg_number(kLeft - 12) + " " + svg_number(kTop + kSide / 2) + ")\"");
    }
    return text + scale_of_weights(kLeft, kTop + kSide + below + 8);
}

std::string many_heads(const AttentionPicture &picture) {
    constexpr size_t kColumns = 4;
    constexpr double kSide = 168, kStep = 180, kLeft = 24, kTop = 92;
    const size_t rows = (picture.heads.size() + kColumns - 1) / kColumns;
    const double end = kTop + static_cast<double>(rows) * (kStep + 18);
    std::string text = svg_begin(760, end + 40);
    for (size_t i = 0; i < picture.heads.size(); ++i) {
        const double left = kLeft + static_cast<double>(i % kColumns) * kStep,
                     top = kTop + static_cast<double>(i / kColumns) * (kStep + 18);
        text += svg_text(left, top - 5, "start",
                         format("head %zu: %.0f%% to the first", picture.heads[i],
                                100 * first_token_share(picture.map, picture.heads[i])),
                         " font-size=\"11\"");
        text += drawn_head(Pooled(picture.map, picture.heads[i], 64), left, top, kSide);
    }
    return text + scale_of_weights(kLeft, end + 8);
}

}  // namespace

double first_token_share(const AttentionMap &map, size_t head) {
    double sum = 0;
    for (size_t query = 1; query < map.tokens; ++query) sum += map.weight(head, query, 0);
    return map.tokens > 1 ? sum / static_cast<double>(map.tokens - 1) : 1;
}

void check_attention_map(const RunOptions &options, const Io &io) {
    if (!options.attention_map) {
        if (options.layer || options.head) throw UsageError("--layer and --head need --attention-map");
        return;
    }
    if (options.samples > 1 || options.beams > 1)
        throw UsageError("--attention-map shows one answer: omit --samples and --beams");
    if (*options.attention_map != "-" && options.attention_map == options.spec_trace)
        throw UsageError("--attention-map and --spec-trace name the same file: choose another");
    if (*options.attention_map != "-") check_svg_file(*options.attention_map, "--attention-map", io);
}

int32_t attention_layer(const RunOptions &options, const kernels::Program &program) {
    const std::vector<kernels::AttentionLayer> layers = kernels::attention_layers(program);
    if (layers.empty())
        throw UsageError("--attention-map: no layer of this model has attention over earlier tokens");
    const int32_t layer = options.layer.value_or(layers[layers.size() / 2].layer);
    const auto found = std::ranges::find(layers, layer, &kernels::AttentionLayer::layer);
    if (found == layers.end()) {
        std::string list;
        for (const auto &one : layers) list += (list.empty() ? "" : ", ") + std::to_string(one.layer);
        throw UsageError("--layer: layer " + std::to_string(layer) +
                         " has no attention that can be shown; layers with it: " + list);
    }
    if (options.head && *options.head >= found->heads)
        throw UsageError("--head: layer " + std::to_string(layer) + " has heads 0 to " +
                         std::to_string(found->heads - 1));
    return layer;
}

AttentionPicture attention_picture(const RunOptions &options, const AttentionMap &map,
                                   std::span<const text::TokenId> tokens, const text::Tokenizer &tokenizer) {
    AttentionPicture picture{map, {}, {}};
    for (const text::TokenId id : tokens) picture.labels.push_back(token_text(tokenizer, id, 14));
    if (options.head) {
        picture.heads = {static_cast<size_t>(*options.head)};
    } else {
        for (size_t head = 0; head < std::min<size_t>(static_cast<size_t>(map.heads), kMostHeads); ++head)
            picture.heads.push_back(head);
    }
    return picture;
}

std::string attention_text(const AttentionPicture &picture) {
    static constexpr std::string_view kShades = " .:-=+*#%@";
    const AttentionMap &map = picture.map;
    const AttentionPicture one{map, {}, {picture.heads[0]}};
    const Pooled cells(map, picture.heads[0], 60);
    std::string text =
        headline(one) + "\n" + seen(map) + "; a row for each token, a column for each token that it sees\n";
    for (size_t query = 0; query < cells.rows; ++query) {
        const std::string label =
            cells.tokens == 1 ? picture.labels[query] : format("%zu", query * cells.tokens);
        text += std::string(16 - std::min<size_t>(16, character_count(label)), ' ') + label + " |";
        std::string row;
        for (size_t key = 0; key <= query; ++key) {
            const double shade = std::sqrt(std::clamp(cells.at(query, key), 0.0, 1.0));
            row += kShades[static_cast<size_t>(std::lround(shade * (kShades.size() - 1)))];
        }
        row.erase(row.find_last_not_of(' ') + 1);
        text += row + "\n";
    }
    text += "weights: ' ' 0   . 0.01   : 0.05   - 0.1   + 0.3   # 0.6   @ 1";
    if (cells.tokens > 1) text += format("; each is the largest of %zu x %zu", cells.tokens, cells.tokens);
    return text + "\n";
}

std::string attention_svg(const AttentionPicture &picture) {
    std::string text = picture.heads.size() == 1 ? one_head(picture) : many_heads(picture);
    text += svg_text(24, 28, "start", headline(picture), " font-size=\"16\" font-weight=\"bold\"");
    std::string below = seen(picture.map) + format("; %zu tokens", picture.map.tokens) +
                        "; a row shows what a token attends to, the first token is at the left";
    if (picture.heads.size() < static_cast<size_t>(picture.map.heads) && picture.heads.size() > 1)
        below += format("; the first %zu of %d heads", picture.heads.size(), picture.map.heads);
    return text + svg_text(24, 50, "start", below) + "</svg>\n";
}

Json attention_json(const AttentionPicture &picture) {
    const AttentionMap &map = picture.map;
    Json heads = Json::array();
    for (const size_t head : picture.heads) {
        Json rows = Json::array();
        for (size_t query = 0; query < map.tokens; ++query) {
            Json row = Json::array();
            for (size_t key = 0; key <= query; ++key) row.push_back(map.weight(head, query, key));
            rows.push_back(std::move(row));
        }
        heads.push_back({{"head", head},
                         {"first_token_share", first_token_share(map, head)},
                         {"weights", std::move(rows)}});
    }
    return {{"layer", map.layer},
            {"window", map.window},
            {"sink_cells", map.sink_cells},
            {"tokens", picture.labels},
            {"heads", std::move(heads)}};
}

std::string draw_attention(const RunOptions &options, int32_t layer, decode::Engine &engine,
                           const completion::PromptFormat &format, const completion::Request &request,
                           const decode::StopRequest &stop, RunOutput &output, Io &io) {
    std::vector<text::TokenId> tokens =
        format.make(request, static_cast<size_t>(engine.executor().context())).tokens;
    tokens.insert(tokens.end(), output.first().tokens.begin(), output.first().tokens.end());
    if (tokens.size() > kMostMapTokens) {
        io.note("--attention-map shows the first " + std::to_string(kMostMapTokens) + " of " +
                std::to_string(tokens.size()) + " tokens");
        tokens.resize(kMostMapTokens);
    }
    const auto map = kernels::attention_map(engine.model().program, layer,
                                            *kernels::cpu_device(options.model.threads), tokens, stop.flag());
    if (!map) return {};  // the run was interrupted
    const AttentionPicture picture = attention_picture(options, *map, tokens, engine.tokenizer());
    if (options.json) output.attach("attention_map", attention_json(picture));
    if (*options.attention_map == "-") return attention_text(picture);
    write_svg_file(*options.attention_map, attention_svg(picture), io);
    return {};
}

}  // namespace runnel::commands
