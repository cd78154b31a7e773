#include "engine/quantize/importance_sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/quantize/importance.h"
#include "engine/quantize/mix.h"
#include "gguf/file.h"
#include "gguf/printable.h"
#include "gguf/writer.h"

namespace runnel::quantize {
namespace {

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

double value_at(const gguf::Tensor &tensor, size_t i) {
    float value;
    std::memcpy(&value, tensor.data + i * sizeof value, sizeof value);
    return double{value};
}

bool was_met(const ImportanceSums::Entry &entry) {
    return std::ranges::any_of(entry.counts, [](int64_t count) { return count > 0; });
}

// Splits an entry with one count into `matrices` side by side, each with that count.
void split_count(ImportanceSums::Entry &entry, size_t matrices) {
    if (entry.counts.size() != 1 || matrices <= 1 || entry.sums.size() % matrices != 0) return;
    entry.counts.assign(matrices, entry.counts.front());
    entry.columns = static_cast<int64_t>(entry.sums.size() / matrices);
}

int64_t number(const gguf::File &file, std::string_view key) {
    const gguf::Value *value = file.find(key);
    return value ? std::max<int64_t>(0, value->as_int().value_or(0)) : 0;
}

}  // namespace

std::vector<float> ImportanceSums::Entry::importance() const {
    std::vector<float> result;
    for (size_t i = 0; i < sums.size(); ++i) {
        const auto count = static_cast<float>(counts[i / (sums.size() / counts.size())]);
        result.push_back(count > 0 ? static_cast<float>(sums[i]) / count : 1.0f);
    }
    return result;
}

void ImportanceSums::add(std::string_view tensor, int64_t matrix, int64_t matrices,
                         std::span<const float> input) {
    auto found = entries.find(tensor);
    if (found == entries.end()) {
        found = entries.emplace(std::string(tensor), Entry{}).first;
        found->second.columns = static_cast<int64_t>(input.size());
        found->second.sums.assign(input.size() * static_cast<size_t>(matrices), 0.0);
        found->second.counts.assign(static_cast<size_t>(matrices), 0);
    }
    Entry &entry = found->second;
    double *sums = entry.sums.data() + static_cast<size_t>(matrix) * input.size();
    for (size_t i = 0; i < input.size(); ++i) sums[i] += double{input[i]} * double{input[i]};
    ++entry.counts[static_cast<size_t>(matrix)];
}

void ImportanceSums::merge(const ImportanceSums &other) {
    for (const auto &[name, from] : other.entries) {
        Entry &to = entries[name];
        if (to.sums.empty()) {
            to = from;
            continue;
        }
        Entry added = from;
        split_count(added, to.counts.size());
        split_count(to, added.counts.size());
        if (to.sums.size() != added.sums.size() || to.counts.size() != added.counts.size())
            throw QuantizeError("tensor " + gguf::printable(name, 200) +
                                " has different sizes in the files: they are of different models");
        for (size_t i = 0; i < to.sums.size(); ++i) to.sums[i] += added.sums[i];
        for (size_t i = 0; i < to.counts.size(); ++i) to.counts[i] += added.counts[i];
    }
    for (const std::string &name : other.datasets)
        if (std::ranges::find(datasets, name) == datasets.end()) datasets.push_back(name);
    chunks += other.chunks;
    chunk_size = std::max(chunk_size, other.chunk_size);
}

ImportanceSums ImportanceSums::load(const std::filesystem::path &path) {
    const gguf::File file = gguf::File::open(path);
    ImportanceSums result;
    for (const gguf::Tensor &sums : file.tensors()) {
        if (!sums.name.ends_with(kSums)) continue;
        const std::string name(sums.name.substr(0, sums.name.size() - kSums.size()));
        const gguf::Tensor *counts = file.find_tensor(name + std::string(kCounts));
        if (!counts || sums.type != gguf::Type::F32 || counts->type != gguf::Type::F32 ||
            sums.elements() % counts->elements() != 0)
            refuse_file(path, "tensor " + gguf::quoted(name) + " is not in the form of an importance matrix");
        Entry &entry = result.entries[name];
        entry.columns = sums.elements() / counts->elements();
        for (size_t i = 0; i < static_cast<size_t>(sums.elements()); ++i) {
            entry.sums.push_back(value_at(sums, i));
            if (!(std::isfinite(entry.sums.back()) && entry.sums.back() >= 0))
                refuse_file(path,
                            "tensor " + gguf::quoted(name) + " has sums that are negative or not numbers");
        }
        for (size_t i = 0; i < static_cast<size_t>(counts->elements()); ++i) {
            const double count = value_at(*counts, i);
            if (!(count >= 0 && count < 0x1p53))
                refuse_file(path, "tensor " + gguf::quoted(name) + " has invalid counts");
            entry.counts.push_back(static_cast<int64_t>(count));
        }
    }
    if (result.entries.empty()) refuse_file(path, "holds no importance matrix");
    result.chunks = number(file, "imatrix.chunk_count");
    result.chunk_size = number(file, "imatrix.chunk_size");
    if (const gguf::Value *datasets = file.find("imatrix.datasets"))
        for (const std::string_view name : datasets->as_strings()) result.datasets.emplace_back(name);
    return result;
}

void ImportanceSums::save(const std::filesystem::path &path, bool overwrite) const {
    gguf::Writer writer;
    writer.add("general.type", "imatrix");
    const std::vector<std::string_view> names(datasets.begin(), datasets.end());
    writer.add("imatrix.datasets", names);
    writer.add("imatrix.chunk_count", static_cast<uint32_t>(chunks));
    writer.add("imatrix.chunk_size", static_cast<uint32_t>(chunk_size));
    for (const auto &[name, entry] : entries) {
        if (!was_met(entry)) continue;
        for (const double sum : entry.sums)
            if (!std::isfinite(static_cast<float>(sum)))
                refuse_file(path,
                            "the input activations of " + gguf::printable(name, 200) + " are not finite");
        const auto matrices = static_cast<int64_t>(entry.counts.size());
        writer.add_tensor(name + std::string(kSums), gguf::Type::F32, {entry.columns, matrices});
        writer.add_tensor(name + std::string(kCounts), gguf::Type::F32, {1, matrices});
    }
    writer.start(path, {.overwrite = overwrite});
    for (const auto &[name, entry] : entries) {
        if (!was_met(entry)) continue;
        const std::vector<float> sums(entry.sums.begin(), entry.sums.end()),
            counts(entry.counts.begin(), entry.counts.end());
        writer.write(std::as_bytes(std::span(sums)));
        writer.write(std::as_bytes(std::span(counts)));
    }
    writer.finish();
}

ImportanceStatistics statistics_of(const ImportanceSums::Entry &entry) {
    ImportanceStatistics result;
    result.matrices = entry.counts.size();
    result.fewest = entry.counts.empty() ? 0 : *std::ranges::min_element(entry.counts);
    std::vector<double> means;
    const auto columns = static_cast<size_t>(entry.columns);
    for (size_t m = 0; m < entry.counts.size(); ++m) {
        if (entry.counts[m] == 0) continue;
        ++result.met;
        for (size_t j = 0; j < columns; ++j)
            means.push_back(entry.sums[m * columns + j] / static_cast<double>(entry.counts[m]));
    }
    if (means.empty()) return result;
    const auto n = static_cast<double>(means.size());
    result.smallest = *std::ranges::min_element(means);
    result.largest = *std::ranges::max_element(means);
    for (const double a : means) result.sum += a;
    result.mean = result.sum / n;
    for (const double a : means) result.deviation += (a - result.mean) * (a - result.mean);
    result.deviation = std::sqrt(result.deviation / n);
    for (const double a : means) {
        if (a > 1e-5) result.active += 1 / n;
        if (a > result.mean + result.deviation) result.outliers += 1 / n;
        if (a > 0) result.entropy -= a / result.sum * std::log2(a / result.sum);
    }
    return result;
}

}  // namespace runnel::quantize
