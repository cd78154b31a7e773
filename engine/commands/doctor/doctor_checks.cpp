#include "engine/commands/doctor/doctor_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "gguf/base/timer.h"
#include "kernels/reference/reference_backend.h"

namespace runnel::commands {
namespace {

using Verdict = Finding::Verdict;
using kernels::Backend;
using kernels::BackendError;

std::string scientific(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1e", value);
    return text;
}

// Runs one sequence of a program on a device. Its blocks are allocated backwards, so that pages are out of order.
class Sequence {
  public:
    Sequence(std::unique_ptr<Backend> backend, const kernels::Program &program, int32_t tokens)
        : backend_(std::move(backend)), vocab_(program.vocab) {
        const int32_t blocks = (tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
        for (int32_t i = 0; i < blocks; ++i) table_.push_back(blocks - 1 - i);
        backend_->load(program, {.blocks = {blocks}, .states = 2}, tokens);
    }

    // Logits of the tokens [past, past + count), whose ids are their positions.
    std::vector<float> run(int32_t past, int32_t count) {
        std::vector<int32_t> tokens(static_cast<size_t>(count)), rows(tokens.size());
        std::iota(tokens.begin(), tokens.end(), past);
        std::iota(rows.begin(), rows.end(), 0);
        kernels::SequenceSpan span{0, count, past, {table_}};
        if (past > 0) span.state = state_;
        state_ = 1 - state_;  // never write the state that is read
        span.state_writes = {{count, state_}};
        std::vector<float> logits(static_cast<size_t>(count * vocab_),
                                  std::numeric_limits<float>::quiet_NaN());
        backend_->execute({tokens, tokens, {&span, 1}, rows}, logits);
        return logits;
    }
    // Seconds per token, the best of several measurements.
    double time_of_one() {
        run(0, 1);
        double best = std::numeric_limits<double>::infinity();
        for (int i = 0; i < 5; ++i) {
            const auto start = base::Clock::now();
            run(0, 1);
            best = std::min(best, base::seconds_since(start));
        }
        return best;
    }

  private:
    std::unique_ptr<Backend> backend_;
    int64_t vocab_;
    std::vector<kernels::BlockId> table_;
    kernels::StateId state_ = 0;
};

bool equal_bits(std::span<const float> a, std::span<const float> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Runs all tokens again in batches of one, three, sixteen, and the rest.
std::vector<float> in_small_batches(Sequence &sequence, int32_t tokens) {
    std::vector<float> all;
    int32_t past = 0;
    for (const int32_t count : {1, 3, 16, tokens}) {
        const int32_t now = std::min(count, tokens - past);
        if (now <= 0) break;
        const std::vector<float> logits = sequence.run(past, now);
        all.insert(all.end(), logits.begin(), logits.end());
        past += now;
    }
    return all;
}

void judge(const StepCase &step, const CheckedDevice &device, Finding &finding) {
    const kernels::Program program = step.program();
    Sequence sequence(device.make(), program, step.tokens);
    const std::vector<float> whole = sequence.run(0, step.tokens);
    const std::vector<float> again = sequence.run(0, step.tokens);
    const std::vector<float> parts = in_small_batches(sequence, step.tokens);
    std::vector<int32_t> ids(static_cast<size_t>(step.tokens));
    std::iota(ids.begin(), ids.end(), 0);
    const std::vector<float> expected = kernels::reference::logits_of(step.reference(), ids);

    const double tolerance = step.rounded ? std::max(step.tolerance, device.least_tolerance) : step.tolerance;
    const Distance d = distance(whole, expected, program.vocab);
    finding.numbers["error"] = std::isfinite(d.all) ? Json(d.all) : Json("not finite");
    finding.detail = std::isfinite(d.all) ? "error " + scientific(d.all) : "results are not finite";
    if (!equal_bits(whole, again)) {
        finding.verdict = Verdict::Unstable;
        finding.detail += ", and a different result in the second run";
    } else if (!(d.all <= tolerance) || !(d.worst_column <= 8 * tolerance)) {
        finding.verdict = Verdict::Wrong;
        if (std::isfinite(d.all))
            finding.detail +=
                ", in one column " + scientific(d.worst_column) + "; expected below " + scientific(tolerance);
    } else if (device.same_bits && !step.rounded &&
               !equal_bits(whole, Sequence(device.same_bits(), program, step.tokens).run(0, step.tokens))) {
        finding.verdict = Verdict::Wrong;
        finding.detail += ", but other bits than with the scalar instruction set";
    } else if (!equal_bits(whole, parts)) {
        const Distance of_parts = distance(parts, expected, program.vocab);
        const bool wrong = !(of_parts.all <= tolerance);
        finding.verdict = wrong ? Verdict::Wrong : Verdict::Varies;
        finding.detail = wrong ? "error " + scientific(of_parts.all) + " with few tokens in a batch"
                               : finding.detail + ", different bits with fewer tokens in a batch";
    }
}

}  // namespace

Distance distance(std::span<const float> a, std::span<const float> b, int64_t columns) {
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    if (a.size() != b.size() || a.empty() || columns <= 0) return {kInfinite, kInfinite};
    const auto width = static_cast<size_t>(columns);
    std::vector<double> errors(width);
    double size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double difference = double{a[i]} - double{b[i]};
        if (!std::isfinite(difference)) return {kInfinite, kInfinite};
        errors[i % width] += difference * difference;
        size += double{b[i]} * double{b[i]};
    }
    const double sum = std::accumulate(errors.begin(), errors.end(), 0.0);
    if (sum == 0) return {0, 0};
    if (size == 0) return {kInfinite, kInfinite};
    const double worst = *std::max_element(errors.begin(), errors.end());
    return {std::sqrt(sum / size), std::sqrt(worst / (size / static_cast<double>(columns)))};
}

Finding check(const StepCase &step, const CheckedDevice &device) {
    Finding finding{device.area, step.name, Verdict::Right};
    finding.role = Finding::Role::Step;
    if (!step.example.empty()) finding.numbers["tensor"] = step.example;
    try {
        judge(step, device, finding);
    } catch (const BackendError &error) {
        using Kind = BackendError::Kind;
        const bool skipped = error.kind == Kind::NoKernel || error.kind == Kind::OutOfMemory;
        finding.verdict = skipped ? Verdict::Skipped : Verdict::Failed;
        finding.detail = error.what();
    }
    return finding;
}

void measure(const StepCase &step, const kernels::Program &program, const CheckedDevice &device,
             Finding &finding) {
    if (device.bytes_per_second <= 0 || step.same.empty() || finding.verdict != Verdict::Right) return;
    constexpr size_t kEnough = size_t{256} << 20;  // bytes: more than caches hold
    const auto many =
        static_cast<int32_t>(std::clamp<size_t>(kEnough / std::max<size_t>(step.bytes, 1), 4, 64));
    try {
        const auto seconds_of = [&](int32_t count) {
            return Sequence(device.make(), repeated(step, program, count), 1).time_of_one();
        };
        const double seconds = (seconds_of(many + 1) - seconds_of(1)) / many;
        if (!(seconds > 0)) return;
        const double rate = static_cast<double>(step.bytes) / seconds, share = rate / device.bytes_per_second;
        char text[96];
        std::snprintf(text, sizeof text, ", %.1f us, %.1f GB/s (%.0f%% of the memory bandwidth)",
                      seconds * 1e6, rate / 1e9, 100 * share);
        finding.detail += text;
        finding.numbers["seconds"] = seconds;
        finding.numbers["bytes_per_second"] = rate;
        finding.numbers["share"] = share;
        if (step.bytes >= kLargeMatrix && share < kSlow) finding.verdict = Verdict::Slow;
    } catch (const BackendError &error) {
        finding.detail += std::string(", not measured: ") + error.what();
    }
}

}  // namespace runnel::commands
