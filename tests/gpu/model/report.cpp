#include "tests/gpu/model/report.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "tests/gpu/model/calibration.h"
#include "tests/gpu/model/cost.h"

namespace runnel::tests::model {

namespace {

[[gnu::format(printf, 1, 2)]] std::string format(const char *pattern, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(text, sizeof text, pattern, arguments);
    va_end(arguments);
    return text;
}

std::string interval(const Range &r) {
    return format(r.middle < 10 ? "**%.1f** (%.1f to %.1f)" : "**%.0f** (%.0f to %.0f)", r.middle, r.worst,
                  r.best);
}

void write_calibration(std::ostream &out) {
    out << "#### Calibration\n\n"
           "A token of a program of others takes its bytes at the device's rate plus its boundaries. The "
           "cost of a\n"
           "boundary is the only fitted constant: one per program, for all models and devices.\n\n"
           "| program | model | device | boundary | measured | model | off by "
           "|\n|---|---|---|---:|---:|---:|---:|\n";
    for (const CalibrationPoint &p : calibration_points()) {
        const double boundary = boundary_of(p.program), tokens = modeled(p, boundary);
        out << format("| %s | %s | %s | %.2f us x %d | %.0f | %.0f | %+.1f%% |\n", p.program.c_str(),
                      p.model.c_str(), p.device.c_str(), boundary, p.boundaries, p.measured, tokens,
                      100 * (tokens / p.measured - 1));
    }
    out << "\nThese points confirm rates and boundaries. None of them is bound by instructions.\n\n";
}

void write_loops(std::ostream &out, const CodeTable &now, const CodeTable &measured) {
    constexpr int kArch = 90;
    out << "#### The inner loop alone on sm_90: bytes per clock and multiprocessor\n\n"
           "By the schedule in the machine code (model/schedule.h) of the kernels for up to 4 tokens, for "
           "latencies "
           "of memory in "
           "clocks. A hit in L1\nwaits for the weights that were requested before it; nothing limits the "
           "bandwidth, of which an "
           "H200 offers 17 to 18.\n\n| input |";
    const auto formats = {kernels::cuda::TileFormat::F16, kernels::cuda::TileFormat::Q8_0,
                          kernels::cuda::TileFormat::Q4_K, kernels::cuda::TileFormat::Q5_K,
                          kernels::cuda::TileFormat::Q6_K};
    for (const char *name : {"F16", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
        for (const int latency : kLatencies) out << format(" %s, %d |", name, latency);
    out << "\n|---|";
    for (size_t i = 0; i < formats.size() * kLatencies.size(); ++i) out << "---:|";
    out << "\n";
    for (const bool staged : {false, true}) {
        out << (staged ? "| in shared memory (quantized weights as int8) |"
                       : "| through L1 (all as binary16, as measured) |");
        const CodeTable &table = staged ? now : measured;
        for (const auto f : formats) {
            const LinearCode &code =
                table.at({kArch, "Linear<(TileFormat)" + std::to_string(static_cast<int>(f)) +
                                     (staged ? ", 1, false, true>" : ", 1, false, false>")});
            const double bytes =
                static_cast<double>(8 * resident_blocks(code.registers) * kernels::cuda::block_bytes(f));
            for (const int clocks : code.clocks) out << format(" %.0f |", bytes / clocks);
        }
        out << "\n";
    }
    out << "\n";
}

void write_measured(std::ostream &out, const CodeTable &measured) {
    out << "#### This program as it was when it was measured (results/)\n\n"
           "| model | type | device | measured | model | off by |\n|---|---|---|---:|---:|---:|\n";
    for (const MeasuredRun &r : measured_runs()) {
        const Range tokens =
            tokens_per_second(shape(r.model), r.type, device(r.device), measured, Version::Measured);
        out << format("| %s | %s | %s | %.0f |", r.model.c_str(), name_of(r.type), r.device.c_str(),
                      r.measured)
            << " " << interval(tokens) << format(" | %+.0f%% |\n", 100 * (tokens.middle / r.measured - 1));
    }
    out << "\n";
}

// A step of `tokens` sequences in steps of one.
double batch_cost(const std::string &model, FileType type, int tokens, const Device &device,
                  const CodeTable &code, Case c, Version version = Version::Now) {
    const auto time = [&](int count) {
        return cost_of(shape(model), type, count, device, code, c, version).all();
    };
    return time(tokens) / time(1);
}

void write_batches(std::ostream &out, const CodeTable &measured) {
    out << "#### A step of 8 sequences, in steps of one, likewise\n\n"
           "| model | type | device | measured | model |\n|---|---|---|---:|---:|\n";
    for (const MeasuredBatch &b : measured_batches()) {
        out << format("| %s | %s | %s | ", b.model.c_str(), name_of(b.type), b.device.c_str());
        for (size_t i = 0; i < b.steps.size(); ++i) out << format(i > 0 ? ", %.2f" : "%.2f", b.steps[i]);
        const auto cost = [&](Case c) {
            return batch_cost(b.model, b.type, kMeasuredSequences, device(b.device), measured, c,
                              Version::Measured);
        };
        out << format(" | **%.2f** (%.2f to %.2f) |\n", cost(Case::Middle), cost(Case::Optimistic),
                      cost(Case::Pessimistic));
    }
    out << "\n";
}

bool fits(const Shape &shape, FileType type, const Device &device) {
    constexpr double kRest = 1.05;  // cache, buffers
    return static_cast<double>(file_bytes(shape, type)) * kRest < device.memory * 1e9;
}

void write_speeds(std::ostream &out, const CodeTable &code) {
    out << "#### Decode, Q4_K_M, one sequence, short context: tokens/s\n\n| device |";
    for (const Shape &s : shapes()) out << " " << s.name << " |";
    out << "\n|---|---:|---:|---:|---:|\n";
    for (const Device &d : devices()) {
        out << "| " << d.name << " |";
        for (const Shape &s : shapes())
            out << " "
                << (fits(s, FileType::Q4_K_M, d) ? interval(tokens_per_second(s, FileType::Q4_K_M, d, code))
                                                 : "-")
                << " |";
        out << "\n";
    }
    out << "\n-: the file is larger than the device's memory.\n\n";
}

// Of the middle case.
double bandwidth_share(FileType type, const Device &device, const CodeTable &code) {
    const Shape &s = shape("Llama-3-8B");
    const double bytes = static_cast<double>(one_token(s, type).bytes());
    return bytes * tokens_per_second(s, type, device, code).middle / (device.read.middle * 1e9);
}

void write_shares(std::ostream &out, const CodeTable &code) {
    out << "#### Llama-3-8B: share of the bandwidth of reads, by type of file\n\n"
           "| device | Q4_K_M | Q8_0 | F16 |\n|---|---:|---:|---:|\n";
    for (const Device &d : devices()) {
        out << "| " << d.name << " |";
        for (const FileType type : {FileType::Q4_K_M, FileType::Q8_0, FileType::F16})
            out << (fits(shape("Llama-3-8B"), type, d)
                        ? format(" %.0f%% |", 100 * bandwidth_share(type, d, code))
                        : " - |");
        out << "\n";
    }
    out << "\n";
}

void write_parts(std::ostream &out, const CodeTable &code) {
    out << "#### Llama-3-8B Q4_K_M: where a token's time goes, middle case, in microseconds\n\n"
           "| device | bytes alone | instructions alone | matrices | boundaries | norms | attention | host | "
           "fetched ahead | all |\n"
           "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for (const Device &d : devices()) {
        const TokenCost c = cost_of(shape("Llama-3-8B"), FileType::Q4_K_M, 1, d, code, Case::Middle);
        out << "| " << d.name << " |";
        for (const double part : {c.bytes, c.instructions, c.matrices, c.boundaries, c.norms, c.attention,
                                  c.host, -c.ahead, c.all()})
            out << format(" %.0f |", 1e6 * part);
        out << "\n";
    }
    out << "\n";
}

void write_launches(std::ostream &out, const CodeTable &code) {
    out << "#### The launches of Llama-3-8B Q4_K_M on an H200, middle case, in microseconds\n\n"
           "| launch | bits | of a token | bytes alone | instructions alone | time "
           "|\n|---|---:|---:|---:|---:|---:|\n";
    const Device &d = device("H200");
    for (const MatrixLaunch &l : one_token(shape("Llama-3-8B"), FileType::Q4_K_M).matrices) {
        const LaunchCost c = cost_of(l, 1, d, code, Case::Middle);
        const double bits =
            8 * static_cast<double>(l.bytes()) / static_cast<double>(l.rows * l.cols * (l.gated ? 2 : 1));
        out << format("| %s | %.1f | %d | %.1f | %.1f | %.1f |\n", l.what.c_str(), bits, l.count,
                      1e6 * c.bytes, 1e6 * c.instructions, 1e6 * c.time);
    }
    out << "\n";
}

void write_goals(std::ostream &out, const CodeTable &code) {
    out << "#### Goals and what the model says today\n\nWith rates that no device has shown: products of "
           "int8, inputs "
           "in shared memory, weights "
           "fetched ahead, attention by 8 warps.\n\n| goal | model | reached by the model |\n|---|---|---|\n";
    const auto speed = [&](const char *on, const char *of, double goal) {
        const Range r = tokens_per_second(shape(of), FileType::Q4_K_M, device(on), code);
        out << format("| %s Q4_K_M on %s: %.0f tokens/s |", of, on, goal) << " " << interval(r)
            << (r.middle >= goal ? " | yes |\n"
                : r.best >= goal ? " | in the best case |\n"
                                 : " | no |\n");
    };
    speed("H200", "Llama-3-8B", 560);
    speed("RTX 4090", "Llama-3-8B", 180);
    speed("RTX 4090", "Qwen3-30B-A3B", 320);
    for (const FileType type : {FileType::Q8_0, FileType::F16})
        for (const char *on : {"H200", "RTX 4090"}) {
            constexpr double kGoal = 0.85;
            const double share = bandwidth_share(type, device(on), code);
            out << format("| Llama-3-8B %s on %s: 85%% of the bandwidth | %.0f%% | %s |\n", name_of(type), on,
                          100 * share, share >= kGoal ? "yes" : "no");
        }
    const TokenCost b200 =
        cost_of(shape("Llama-3-8B"), FileType::Q4_K_M, 1, device("B200"), code, Case::Middle);
    out << format(
        "| Llama-3-8B Q4_K_M on B200: not bound by instructions | %.0f us of instructions, %.0f us of bytes"
        " | %s |\n",
        1e6 * b200.instructions, 1e6 * b200.bytes, b200.instructions < b200.bytes ? "yes" : "no");
    double most = 0;
    std::string slowest;
    for (const Device &d : devices())
        if (const double one = batch_cost("Llama-3-8B", FileType::Q4_K_M, 8, d, code, Case::Middle);
            one > most)
            most = one, slowest = d.name;
    out << format(
        "| a step of 8 sequences costs at most 1.3 times one, Llama-3-8B Q4_K_M, short context | at most "
        "%.2f times "
        "(%s) | %s |\n\n",
        most, slowest.c_str(), most <= 1.3 ? "yes" : "no");
}

void write_devices(std::ostream &out) {
    out << "#### Devices\n\n| device | code | multiprocessors | GHz | reads, GB/s | source "
           "|\n|---|---|---:|---|---|---|\n";
    for (const Device &d : devices())
        out << format("| %s | sm_%d | %d | %.2f (%.2f to %.2f) | %.0f (%.0f to %.0f) |", d.name.c_str(),
                      d.code, d.multiprocessors, d.clock.middle, d.clock.worst, d.clock.best, d.read.middle,
                      d.read.worst, d.read.best)
            << " " << d.source << " |\n";
}

}  // namespace

std::string report(const CodeTable &code, const CodeTable &measured) {
    std::ostringstream out;
    write_goals(out, code);
    write_speeds(out, code);
    write_shares(out, code);
    write_parts(out, code);
    write_launches(out, code);
    write_loops(out, code, measured);
    write_measured(out, measured);
    write_batches(out, measured);
    write_calibration(out);
    write_devices(out);
    return out.str();
}

std::string with_report(const std::string &text, const std::string &report) {
    const std::string begin = std::string(kReportBegin) + "\n\n", end = "\n" + std::string(kReportEnd);
    const size_t from = text.find(begin), to = text.find(end);
    if (from == std::string::npos || to == std::string::npos || to < from)
        throw std::runtime_error("the page has no place for what the model writes");
    return text.substr(0, from + begin.size()) + report + text.substr(to);
}

}  // namespace runnel::tests::model
