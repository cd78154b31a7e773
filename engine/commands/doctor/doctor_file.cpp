#include "engine/commands/doctor/doctor_file.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "gguf/base/timer.h"
#include "gguf/scan.h"

namespace runnel::commands {
namespace {

using Verdict = Finding::Verdict;

constexpr size_t kPiece = size_t{4} << 20;  // bytes per unit of work of a thread
constexpr size_t kMostNamed = 20;           // tensors

// Matrices have few pages of zeros, such as the padding of a vocabulary; vectors may be all zeros
// (biases). A file that was preallocated and not fully downloaded ends in zeros: most of a matrix, or
// part of the file's last one.
//
// Matrices of kLarge bytes or more: a share of zero pages above kMostZeros is reported.
constexpr uint64_t kLarge = uint64_t{1} << 20;
constexpr double kMostZeros = 0.02;
// Matrices of kMatrixPages pages or more: a share of zero pages above kMissing is damage, and so is a share above
// kMissingEnd at the end of the file's last matrix.
constexpr uint64_t kMatrixPages = 16;
constexpr double kMissing = 0.5, kMissingEnd = 0.1;

struct Piece {
    size_t tensor;
    size_t begin, bytes;
};

std::vector<Piece> pieces_of(const gguf::File &file) {
    std::vector<Piece> pieces;
    const auto &tensors = file.tensors();
    for (size_t t = 0; t < tensors.size(); ++t) {
        const size_t block = gguf::traits(tensors[t].type).block_bytes;
        const size_t most = std::max<size_t>(kPiece / (block * gguf::kScanPage), 1) * block * gguf::kScanPage;
        for (size_t at = 0; at < tensors[t].bytes; at += most)
            pieces.push_back({t, at, std::min(most, static_cast<size_t>(tensors[t].bytes) - at)});
    }
    return pieces;
}

enum class Condition { Sound, Zeros, Missing, Broken };

Condition condition_of(const gguf::Tensor &tensor, const gguf::DataScan &scan, bool last) {
    if (scan.not_finite > 0) return Condition::Broken;
    const auto pages = static_cast<double>(scan.pages);
    if (tensor.rank < 2 || scan.pages < kMatrixPages) return Condition::Sound;
    if (static_cast<double>(scan.zero_pages) > kMissing * pages ||
        (last && static_cast<double>(scan.zero_tail) > kMissingEnd * pages))
        return Condition::Missing;
    const bool zeros = tensor.bytes >= kLarge && static_cast<double>(scan.zero_pages) > kMostZeros * pages;
    return zeros ? Condition::Zeros : Condition::Sound;
}

// For each tensor, whether it is the last one of its part.
std::vector<bool> last_of_parts(const std::vector<gguf::Tensor> &tensors) {
    std::map<size_t, size_t> last;  // per part
    for (size_t t = 0; t < tensors.size(); ++t) {
        const auto [known, first] = last.try_emplace(static_cast<size_t>(tensors[t].part), t);
        if (tensors[t].offset > tensors[known->second].offset) known->second = t;
    }
    std::vector<bool> is_last(tensors.size());
    for (const auto &[part, t] : last) is_last[t] = true;
    return is_last;
}

Finding describe(const gguf::Tensor &tensor, const gguf::DataScan &scan, Condition condition) {
    const gguf::TypeTraits &type = gguf::traits(tensor.type);
    Finding finding{Finding::Area::File, std::string(tensor.name), Verdict::Wrong};
    finding.numbers = {{"type", type.name},
                       {"blocks", scan.blocks},
                       {"not_finite", scan.not_finite},
                       {"zero_pages", scan.zero_pages}};
    if (scan.not_finite > 0) {
        const uint64_t byte = tensor.offset + *scan.first_broken * type.block_bytes;
        finding.numbers["first_byte"] = byte;
        const bool nvfp4 = tensor.type == gguf::Type::NVFP4;
        finding.detail =
            std::to_string(scan.not_finite) + " of " + std::to_string(scan.blocks) +
            (type.quantized ? " blocks have scales that" : " values") +
            (nvfp4 ? " no quantizer writes (NaN or negative)" : " are not finite (NaN or infinite)") +
            ", the first at byte " + std::to_string(byte);
        if (tensor.part > 0) finding.detail += " of part " + std::to_string(tensor.part + 1);
    } else {
        if (condition == Condition::Zeros) finding.verdict = Verdict::Note;
        finding.detail = std::to_string(scan.zero_pages) + " of " + std::to_string(scan.pages) +
                         " pages contain only zeros, as after an unfinished download";
    }
    return finding;
}

// Damaged tensors first.
std::vector<Finding> describe_all(const std::vector<gguf::Tensor> &tensors,
                                  const std::vector<gguf::DataScan> &scans) {
    const std::vector<bool> is_last = last_of_parts(tensors);
    std::vector<Finding> findings;
    for (size_t t = 0; t < scans.size(); ++t) {
        const Condition condition = condition_of(tensors[t], scans[t], is_last[t]);
        if (condition != Condition::Sound) findings.push_back(describe(tensors[t], scans[t], condition));
    }
    std::stable_partition(findings.begin(), findings.end(),
                          [](const Finding &f) { return f.verdict == Verdict::Wrong; });
    return findings;
}

}  // namespace

std::vector<Finding> check_file(const gguf::File &file, int threads,
                                const std::function<void(uint64_t, uint64_t)> &progress) {
    const auto started = base::Clock::now();
    const std::vector<Piece> pieces = pieces_of(file);
    std::vector<gguf::DataScan> scans(pieces.size());
    std::atomic<size_t> next{0};
    std::atomic<uint64_t> done{0};
    uint64_t all = 0;
    for (const Piece &piece : pieces) all += piece.bytes;
    std::mutex showing;
    const auto work = [&] {
        for (size_t i = next++; i < pieces.size(); i = next++) {
            const gguf::Tensor &tensor = file.tensors()[pieces[i].tensor];
            scans[i] = gguf::scan(tensor.type, {tensor.data + pieces[i].begin, pieces[i].bytes});
            done += pieces[i].bytes;
            const std::unique_lock hold(showing, std::try_to_lock);
            if (progress && hold.owns_lock()) progress(done, all);
        }
    };
    {
        std::vector<std::jthread> others;
        for (int t = 1; t < threads; ++t) others.emplace_back(work);
        work();
    }
    const double seconds = base::seconds_since(started);

    std::vector<gguf::DataScan> sums(file.tensors().size());
    for (size_t i = 0; i < pieces.size(); ++i) sums[pieces[i].tensor].add(scans[i]);
    std::vector<Finding> findings = describe_all(file.tensors(), sums);
    const auto damaged = static_cast<size_t>(std::count_if(
        findings.begin(), findings.end(), [](const Finding &f) { return f.verdict == Verdict::Wrong; }));
    if (findings.size() > kMostNamed) findings.resize(kMostNamed);
    char text[120];
    std::snprintf(text, sizeof text, "%zu tensors, %.2f GB read in %.1f s", file.tensors().size(),
                  static_cast<double>(all) / 1e9, seconds);
    Finding whole{Finding::Area::File, "all tensors", damaged > 0 ? Verdict::Wrong : Verdict::Right, text};
    whole.role = Finding::Role::Summary;
    if (damaged > 0) whole.detail += ", " + std::to_string(damaged) + " of them damaged";
    whole.numbers = {
        {"tensors", file.tensors().size()}, {"bytes", all}, {"damaged", damaged}, {"seconds", seconds}};
    findings.push_back(std::move(whole));
    return findings;
}

}  // namespace runnel::commands
