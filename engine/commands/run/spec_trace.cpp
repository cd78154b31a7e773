#include "engine/commands/run/spec_trace.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/commands/arguments.h"
#include "engine/commands/figures.h"
#include "engine/commands/generation.h"
#include "engine/commands/plot/svg.h"
#include "engine/commands/plot/token_text.h"

namespace runnel::commands {
namespace {

using decode::DraftPass, measure::DraftTimeline;

constexpr double kPageWidth = 760, kMargin = 24, kColumn = 89, kChip = 18;
constexpr size_t kColumns = 8, kMostPasses = 160, kChipCharacters = 10;
constexpr const char *kAccepted = "#bfe5d5", *kOwn = "#cfe3f3", *kRejected = "#f0f0f0", *kPass = "#0072B2",
                     *kDraft = "#E69F00", *kPlain = "#999999";

// The drafted tokens that did not become part of the answer.
std::vector<text::TokenId> rejected(const DraftPass &pass) {
    const size_t right = std::min(pass.branch_after.value_or(pass.accepted), pass.drafts.size());
    return {pass.drafts.begin() + static_cast<std::ptrdiff_t>(right), pass.drafts.end()};
}

std::string headline(const DraftTimeline &t) {
    return format("%lld tokens in %zu passes, %.1f ms", static_cast<long long>(t.tokens), t.passes.size(),
                  t.seconds * 1e3);
}

std::string detail(const DraftTimeline &t) {
    if (t.guessed == 0) return "no drafts";
    return format("%lld of %lld drafted tokens were accepted", static_cast<long long>(t.accepted),
                  static_cast<long long>(t.guessed));
}

// The comparison with plain decoding, if there is a measurement for it.
std::string compared(const DraftTimeline &t) {
    if (t.passes.empty()) return "the answer ended with its first token";
    if (!t.without) return "every pass had drafts: --spec-verify measures the time without them";
    return format("%lld passes of one token would take %.1f ms: %.2f ms each, the median of %lld such passes",
                  static_cast<long long>(t.tokens), *t.without * 1e3, *t.plain * 1e3,
                  static_cast<long long>(t.plain_passes));
}

// The times of all passes, on one scale with the time without drafts.
std::string strips(const DraftTimeline &t, double top) {
    const double longest = std::max({t.seconds, t.without.value_or(0), 1e-9});
    const double scale = (kPageWidth - 2 * kMargin - 110) / longest, left = kMargin + 110;
    constexpr const char *kEdge = " stroke=\"#fff\" stroke-width=\"0.6\"";
    std::string text = svg_text(kMargin, top + 15, "start", "with drafts");
    double x = left;
    for (const DraftPass &pass : t.passes) {
        text += svg_rectangle(x, top, pass.draft_seconds * scale, 22, kDraft, kEdge);
        x += pass.draft_seconds * scale;
        text += svg_rectangle(x, top, pass.pass_seconds * scale, 22, kPass, kEdge);
        x += pass.pass_seconds * scale;
    }
    if (t.without) {
        text += svg_text(kMargin, top + 45, "start", "without");
        for (int64_t i = 0; i < t.tokens; ++i)
            text += svg_rectangle(left + static_cast<double>(i) * *t.plain * scale, top + 30,
                                  *t.plain * scale, 22, kPlain, kEdge);
    }
    text += svg_text(left, top + 72, "middle", "0");
    return text + svg_text(left + longest * scale, top + 72, "end", format("%.1f ms", longest * 1e3));
}

std::string chip(double x, double y, const std::string &text, const char *color, bool is_struck) {
    return svg_rectangle(x, y, kColumn - 6, kChip - 2, color, " rx=\"3\"") +
           svg_text(x + 4, y + 12, "start", text,
                    std::string(" font-size=\"11\" xml:space=\"preserve\"") +
                        (is_struck ? " fill=\"#888\" text-decoration=\"line-through\"" : ""));
}

std::string column(const DraftPass &pass, size_t number, const text::Tokenizer &tokenizer, double x,
                   double y) {
    std::string text = svg_text(x, y + 11, "start", format("%zu", number), " font-size=\"11\" fill=\"#666\"");
    text += svg_text(x + kColumn - 8, y + 11, "end",
                     format("%.2f ms", (pass.draft_seconds + pass.pass_seconds) * 1e3),
                     " font-size=\"11\" fill=\"#666\"");
    y += kChip;
    for (size_t i = 0; i < pass.tokens.size(); ++i, y += kChip)
        text += chip(x, y, token_text(tokenizer, pass.tokens[i], kChipCharacters),
                     i < pass.accepted ? kAccepted : kOwn, false);
    for (const text::TokenId id : rejected(pass)) {
        text += chip(x, y, token_text(tokenizer, id, kChipCharacters), kRejected, true);
        y += kChip;
    }
    return text;
}

size_t chips_of(const DraftPass &pass) {
    return pass.tokens.size() + rejected(pass).size();
}

std::string legend(double y) {
    std::string text;
    double x = kMargin;
    const std::pair<const char *, const char *> entries[] = {{kAccepted, "draft, accepted"},
                                                             {kOwn, "the model's own token"},
                                                             {kRejected, "draft, rejected"},
                                                             {kPass, "time of a pass"},
                                                             {kDraft, "time of drafting"}};
    for (const auto &[color, name] : entries) {
        text += svg_rectangle(x, y, 14, 14, color) + svg_text(x + 19, y + 12, "start", name);
        x += 36 + 7 * static_cast<double>(std::string_view(name).size());
    }
    return text;
}

}  // namespace

void check_spec_trace(const RunOptions &options, const Io &io) {
    if (!options.spec_trace) return;
    if (!drafting_options(options.draft, options.model))
        throw UsageError("--spec-trace needs drafts: --draft-model, --lookup or --self-draft");
    if (options.samples > 1) throw UsageError("--spec-trace shows one answer, not --samples");
    if (*options.spec_trace != "-") check_svg_file(*options.spec_trace, "--spec-trace", io);
}

std::string spec_trace_text(const DraftTimeline &t, const text::Tokenizer &tokenizer) {
    std::string text = headline(t) + "; " + detail(t) + "\n" + compared(t) + "\n";
    text += "[accepted] +the model's own token ~rejected~\n";
    text += "pass  draft ms   pass ms\n";
    for (size_t i = 0; i < t.passes.size(); ++i) {
        const DraftPass &pass = t.passes[i];
        text += format("%4zu %9.2f %9.2f  ", i + 1, pass.draft_seconds * 1e3, pass.pass_seconds * 1e3);
        size_t width = 26;
        bool is_cut = false;
        const auto add = [&](const std::string &one) {
            is_cut = is_cut || width + character_count(one) > 76;
            if (is_cut) return;
            text += one;
            width += character_count(one);
        };
        for (size_t n = 0; n < pass.tokens.size(); ++n) {
            const std::string token = token_text(tokenizer, pass.tokens[n], 20);
            add(n < pass.accepted ? "[" + token + "]" : "+" + token);
        }
        for (const text::TokenId id : rejected(pass)) add("~" + token_text(tokenizer, id, 20) + "~");
        text += is_cut ? " ...\n" : "\n";
    }
    return text;
}

std::string spec_trace_svg(const DraftTimeline &t, const text::Tokenizer &tokenizer) {
    constexpr double kTop = 160;
    const size_t shown = std::min(t.passes.size(), kMostPasses);
    std::string columns;
    double y = kTop;
    for (size_t first = 0; first < shown; first += kColumns) {
        const size_t last = std::min(first + kColumns, shown);
        size_t chips = 0;
        for (size_t i = first; i < last; ++i) {
            columns +=
                column(t.passes[i], i + 1, tokenizer, kMargin + static_cast<double>(i - first) * kColumn, y);
            chips = std::max(chips, chips_of(t.passes[i]));
        }
        y += static_cast<double>(chips + 2) * kChip;
    }
    if (shown < t.passes.size()) {
        columns += svg_text(kMargin, y, "start", format("and %zu more passes", t.passes.size() - shown));
        y += kChip;
    }
    std::string text = svg_begin(kPageWidth, y + 40);
    text += svg_text(kMargin, 28, "start", headline(t) + "; " + detail(t),
                     " font-size=\"16\" font-weight=\"bold\"");
    text += svg_text(kMargin, 48, "start", compared(t));
    return text + strips(t, 66) + columns + legend(y + 8) + "</svg>\n";
}

Json spec_trace_json(const DraftTimeline &t) {
    Json passes = Json::array();
    for (const DraftPass &pass : t.passes)
        passes.push_back({{"drafts", pass.drafts},
                          {"tokens", pass.tokens},
                          {"accepted", pass.accepted},
                          {"guessed", pass.guessed},
                          {"branch_after", pass.branch_after ? Json(*pass.branch_after) : Json()},
                          {"draft_ms", pass.draft_seconds * 1e3},
                          {"pass_ms", pass.pass_seconds * 1e3}});
    return {{"tokens", t.tokens},
            {"guessed", t.guessed},
            {"accepted", t.accepted},
            {"ms", t.seconds * 1e3},
            {"plain_pass_ms", t.plain ? Json(*t.plain * 1e3) : Json()},
            {"plain_ms", t.without ? Json(*t.without * 1e3) : Json()},
            {"passes", std::move(passes)}};
}

void write_spec_trace(const std::string &path, const DraftTimeline &timeline,
                      const text::Tokenizer &tokenizer, Io &io) {
    if (path == "-")
        io.err.write(spec_trace_text(timeline, tokenizer));
    else
        write_svg_file(path, spec_trace_svg(timeline, tokenizer), io);
}

}  // namespace runnel::commands
