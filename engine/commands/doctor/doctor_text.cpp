#include "engine/commands/doctor/doctor_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>

namespace runnel::commands {
namespace {

using Verdict = Finding::Verdict;

constexpr const char *kText =
    "Once upon a time there was a little girl who lived with her mother in a house at the edge of the "
    "forest. "
    "One day her mother said to her: take this bread and this bottle of milk, and bring them to your "
    "grandmother, who is ill and weak. Go before it gets hot, and do not leave the path.";

// Mean divergence of the GPU's distributions from the CPU's, in nats. The CPU's 8-bit activations alone cause
// some thousandths in small models.
constexpr double kMostDivergence = 2e-2;

std::span<const float> row(const TextLogits &of, size_t token) {
    const auto vocab = static_cast<size_t>(of.vocab);
    return std::span(of.logits).subspan(token * vocab, vocab);
}

double log_sum(std::span<const float> logits) {
    const double top = double{*std::max_element(logits.begin(), logits.end())};
    double sum = 0;
    for (const float l : logits) sum += std::exp(double{l} - top);
    return top + std::log(sum);
}

size_t best(std::span<const float> logits) {
    return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double divergence(std::span<const float> p, std::span<const float> q) {
    const double p_sum = log_sum(p), q_sum = log_sum(q);
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) {
        const double log_p = double{p[i]} - p_sum;
        if (log_p > -16) sum += std::exp(log_p) * (log_p - (double{q[i]} - q_sum));
    }
    return sum;
}

bool all_finite(const TextLogits &of) {
    return std::all_of(of.logits.begin(), of.logits.end(), [](float l) { return std::isfinite(l); });
}

}  // namespace

TextLogits logits_of_text(const decode::EngineOptions &options, int32_t most) {
    decode::EngineOptions small = options;
    small.context = 2 * most;
    small.batch = most;
    decode::Engine engine(small);
    TextLogits result;
    result.tokens = engine.tokenizer().encode(kText);
    if (result.tokens.size() > static_cast<size_t>(most)) result.tokens.resize(static_cast<size_t>(most));
    result.vocab = engine.executor().vocab();
    decode::SequenceCache cache = engine.executor().new_sequence();
    const decode::StepInput input{&cache, result.tokens, static_cast<int32_t>(result.tokens.size())};
    engine.executor().step({&input, 1}, result.logits);
    return result;
}

Finding check_text(const TextLogits &of) {
    Finding finding{Finding::Area::Text,
                    "a text of " + std::to_string(of.tokens.size()) + " tokens on the CPU", Verdict::Right};
    if (!all_finite(of)) {
        finding.area = Finding::Area::File;
        finding.verdict = Verdict::Wrong;
        finding.detail = "the model's numbers overflow: the logits of a text are not finite";
        finding.remedy =
            "The file's weights are damaged or were converted wrongly: download it again, compare its "
            "checksum "
            "with the publisher's, or use another conversion of the model.";
        return finding;
    }
    double surprise = 0;
    for (size_t t = 0; t + 1 < of.tokens.size(); ++t)
        surprise += log_sum(row(of, t)) - double{row(of, t)[static_cast<size_t>(of.tokens[t + 1])]};
    const double perplexity =
        std::exp(surprise / static_cast<double>(std::max<size_t>(of.tokens.size() - 1, 1)));
    char text[200];
    std::snprintf(text, sizeof text, "perplexity %.1f", perplexity);
    finding.detail = text;
    finding.numbers["perplexity"] = perplexity;
    if (of.tokens.size() > 1 && perplexity > of.vocab) {
        finding.verdict = Verdict::Note;
        finding.detail += ", worse than random guesses among " + std::to_string(of.vocab) +
                          " tokens: the model is untrained, or the file has wrong weights";
    }
    return finding;
}

Finding compare_texts(const TextLogits &cpu, const TextLogits &gpu, const TextLogits &again,
                      const std::string &device) {
    Finding finding{Finding::Area::Text, "the same text on " + device, Verdict::Right};
    if (!all_finite(gpu)) {
        finding.verdict = Verdict::Wrong;
        finding.detail = "numbers that are not finite";
        return finding;
    }
    double sum = 0;
    size_t same = 0;
    const size_t tokens = cpu.tokens.size();
    for (size_t t = 0; t < tokens; ++t) {
        sum += divergence(row(cpu, t), row(gpu, t)) / static_cast<double>(tokens);
        same += best(row(cpu, t)) == best(row(gpu, t));
    }
    char text[120];
    std::snprintf(text, sizeof text, "divergence from the CPU %.1e, the same top token for %zu of %zu", sum,
                  same, tokens);
    finding.detail = text;
    finding.numbers = {{"mean_kl", sum}, {"same_top", same}, {"tokens", tokens}};
    const bool equal =
        std::memcmp(gpu.logits.data(), again.logits.data(), gpu.logits.size() * sizeof(float)) == 0;
    if (!equal) {
        finding.verdict = Verdict::Unstable;
        finding.detail += ", and a different result in the second run";
    } else if (!(sum <= kMostDivergence)) {
        finding.verdict = Verdict::Wrong;
    }
    return finding;
}

}  // namespace runnel::commands
