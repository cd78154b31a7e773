// (With the sanitizers, GCC 12 falsely reports <regex> as uninitialized: PR 105562.)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include "engine/commands/quantize/quantize.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/commands/figures.h"
#include "engine/commands/json.h"
#include "engine/decode/stop_request.h"
#include "gguf/printable.h"
#include "gguf/quantize.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

gguf::Type type_named(const std::string &name, const std::string &option) {
    const quantize::Mix *mix = quantize::find_mix(name);
    // A mix of several types ("Q4_K_M") cannot be the type of one tensor; "Q4_K" can.
    const auto same = [](char a, char b) {
        return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
    };
    for (const quantize::Mix &candidate : quantize::mixes())
        if (std::ranges::equal(gguf::traits(candidate.base).name, name, same)) return candidate.base;
    throw UsageError(option + ": " + gguf::quoted(name) +
                     (mix ? " is a mix of types, not the type of one tensor" : " is not a tensor type"));
}

const quantize::Mix &mix_named(const std::string &name) {
    if (const quantize::Mix *mix = quantize::find_mix(name)) return *mix;
    std::string names;
    for (const quantize::Mix &mix : quantize::mixes())
        names += (names.empty() ? "" : ", ") + std::string(mix.name);
    throw UsageError("there is no type " + gguf::quoted(name) + "; types: " + names);
}

quantize::MixOptions mix_options(const QuantizeOptions &options) {
    quantize::MixOptions result;
    result.pure = options.pure;
    result.leave_output = options.leave_output;
    if (!options.output_type.empty()) result.output = type_named(options.output_type, "--output-tensor-type");
    if (!options.embedding_type.empty())
        result.embedding = type_named(options.embedding_type, "--token-embedding-type");
    for (const std::string &wish : options.tensor_types) {
        const size_t equals = wish.rfind('=');
        if (equals == std::string::npos || equals == 0)
            throw UsageError("--tensor-type takes PATTERN=TYPE, not " + gguf::quoted(wish));
        try {
            result.overrides.emplace_back(std::regex(wish.substr(0, equals), std::regex::icase),
                                          type_named(wish.substr(equals + 1), "--tensor-type"));
        } catch (const std::regex_error &) {
            throw UsageError("--tensor-type: " + gguf::quoted(wish.substr(0, equals)) +
                             " is not a regular expression");
        }
    }
    return result;
}

double bits_per_weight(const quantize::QuantizePlan &plan) {
    return plan.elements > 0
               ? 8.0 * static_cast<double>(plan.bytes_after) / static_cast<double>(plan.elements)
               : 0;
}

std::string summary(const quantize::QuantizePlan &plan) {
    char bits[48];
    std::snprintf(bits, sizeof bits, "%.2f bits per weight", bits_per_weight(plan));
    return size_text(plan.bytes_before) + " -> " + size_text(plan.bytes_after) + ", " + bits;
}

void print_plan(const quantize::QuantizePlan &plan, bool json, Io &io) {
    if (json) {
        nlohmann::ordered_json result = {{"tensors", nlohmann::ordered_json::array()},
                                         {"bytes_before", plan.bytes_before},
                                         {"bytes_after", plan.bytes_after},
                                         {"bits_per_weight", bits_per_weight(plan)}};
        for (const quantize::PlannedTensor &tensor : plan.tensors)
            result["tensors"].push_back({{"name", gguf::printable(tensor.name, 4096)},
                                         {"from", gguf::traits(tensor.source->type).name},
                                         {"to", gguf::traits(tensor.type).name},
                                         {"bytes", tensor.bytes}});
        io.out.write(result.dump() + "\n");
        return;
    }
    std::string text;
    for (const quantize::PlannedTensor &tensor : plan.tensors) {
        char line[160];
        std::snprintf(line, sizeof line, "%-8s %-8s %12s  ",
                      std::string(gguf::traits(tensor.source->type).name).c_str(),
                      std::string(gguf::traits(tensor.type).name).c_str(), size_text(tensor.bytes).c_str());
        text += line + gguf::printable(tensor.name, 4096) +
                (tensor.note.empty() ? "" : "  (" + tensor.note + ")") + "\n";
    }
    io.out.write(text + "all: " + summary(plan) + "\n");
}

// "quantizing [####----]  50%  2.3 of 4.6 GiB  21 s left", at most five times a second.
class Bar {
  public:
    explicit Bar(Io &io) : io_(io) {}
    ~Bar() {
        if (drawn_) io_.progress("\r\x1b[K");
    }
    Bar(const Bar &) = delete;
    Bar &operator=(const Bar &) = delete;

    void update(uint64_t done, uint64_t all) {
        const auto now = Clock::now();
        if (!io_.err.is_terminal() || io_.quiet || now - start_ < 1s || now - last_ < 200ms || all == 0)
            return;
        last_ = now;
        drawn_ = true;
        const double share = static_cast<double>(done) / static_cast<double>(all);
        const double seconds = std::chrono::duration<double>(now - start_).count();
        char text[96];
        std::snprintf(text, sizeof text, "%s of %s  %.0f s left", size_text(done).c_str(),
                      size_text(all).c_str(), share > 0 ? seconds / share - seconds : 0);
        io_.progress("\rquantizing " + progress_bar(share) + text + "\x1b[K");
    }

  private:
    Io &io_;
    const Clock::time_point start_ = Clock::now();
    Clock::time_point last_{};
    bool drawn_ = false;
};

void check_destination(const gguf::File &source, const QuantizeOptions &options) {
    const fs::path path(options.destination);
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return;
    if (fs::is_directory(status))
        throw UsageError(gguf::printable(options.destination, 1024) + ": is a folder");
    const fs::path in(options.source);
    std::error_code unknown;
    if (fs::equivalent(path, in, unknown) || fs::equivalent(path, source.path(), unknown))
        throw UsageError(gguf::printable(options.destination, 1024) +
                         ": this is the input file: choose another output");
    if (fs::is_regular_file(status) && !options.overwrite)
        throw UsageError(gguf::printable(options.destination, 1024) +
                         ": exists already; --overwrite replaces it");
}

void check_space(const quantize::QuantizePlan &plan, const std::string &destination) {
    constexpr uint64_t kMetadata = uint64_t{16} << 20;
    const fs::path folder = fs::absolute(destination).parent_path();
    std::error_code error;
    const fs::space_info space = fs::space(folder, error);
    if (!error && space.available < plan.bytes_after + kMetadata)
        throw OutputError(gguf::printable(destination, 1024) + ": needs " +
                          size_text(plan.bytes_after + kMetadata) + ", but the disk has " +
                          size_text(space.available) + " free");
}

int convert(const QuantizeOptions &options, Io &io) {
    quantize::QuantizeRequest request;
    request.mix = &mix_named(options.type);
    request.types = mix_options(options);
    request.method = options.method;
    request.allow_requantize = options.allow_requantize;
    request.pruned = {options.pruned.begin(), options.pruned.end()};
    request.threads = options.threads > 0
                          ? options.threads
                          : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    std::optional<quantize::Importance> importance;
    if (!options.importance.empty()) {
        importance = quantize::Importance::load(options.importance);
        request.importance = &*importance;
        request.importance_file = fs::path(options.importance).filename().string();
    }
    const gguf::File source = gguf::File::open(options.source);
    const quantize::QuantizePlan plan = quantize::plan_quantization(source, request);
    if (options.dry_run) {
        print_plan(plan, options.json, io);
        return exit_code::kDone;
    }
    check_destination(source, options);
    check_space(plan, options.destination);
    for (const quantize::PlannedTensor &tensor : plan.tensors)
        if (!tensor.note.empty()) io.note(gguf::printable(tensor.source->name, 200) + ": " + tensor.note);
    decode::StopRequest stop;
    InterruptScope interrupts(stop);
    {
        Bar bar(io);
        request.progress = [&](uint64_t done) {
            bar.update(done, plan.bytes_before);
            return !stop.requested();
        };
        if (!quantize::quantize(source, plan, request, options.destination)) return exit_code::kInterrupted;
    }
    io.note(gguf::printable(options.destination, 1024) + ": " + summary(plan));
    return exit_code::kDone;
}

}  // namespace

int quantize_model(const QuantizeOptions &options, Io &io) {
    try {
        return convert(options, io);
    } catch (const quantize::QuantizeError &error) {
        throw InputError(error.what());
    }
}

}  // namespace runnel::commands
