#include "engine/quantize/importance.h"

#include <cmath>
#include <cstring>

#include "engine/quantize/mix.h"
#include "gguf/file.h"
#include "gguf/mapping.h"
#include "gguf/printable.h"

namespace runnel::quantize {
namespace {

using Entries = std::map<std::string, std::vector<float>, std::less<>>;

float float_at(const gguf::Tensor &tensor, int64_t i) {
    float value;
    std::memcpy(&value, tensor.data + static_cast<size_t>(i) * sizeof value, sizeof value);
    return value;
}

// NAME.in_sum2 [columns, matrices]: sums of squares. NAME.counts [1, matrices]: number of summands.
void read_sums(const gguf::File &file, const std::filesystem::path &path, Entries &entries) {
    constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";
    for (const gguf::Tensor &sums : file.tensors()) {
        if (!sums.name.ends_with(kSums)) continue;
        const std::string name(sums.name.substr(0, sums.name.size() - kSums.size()));
        const gguf::Tensor *counts = file.find_tensor(name + std::string(kCounts));
        const int64_t matrices = sums.shape[1];
        if (!counts) refuse_file(path, "tensor " + gguf::quoted(name + ".counts") + " is missing");
        const int64_t given = counts->elements();
        if (sums.type != gguf::Type::F32 || counts->type != gguf::Type::F32 ||
            (given != 1 && given != matrices) || sums.elements() != sums.shape[0] * matrices)
            refuse_file(path, "tensor " + gguf::quoted(name) + " is not in the form of an importance matrix");
        std::vector<float> &values = entries[name];
        values.resize(static_cast<size_t>(sums.elements()));
        for (int64_t i = 0; i < sums.elements(); ++i) {
            const float count = float_at(*counts, given == 1 ? 0 : i / sums.shape[0]);
            // No token reached this expert: all columns count the same.
            values[static_cast<size_t>(i)] = count > 0 ? float_at(sums, i) / count : 1.0f;
        }
    }
}

// The older form, little-endian: i32 entries; each i32 length, name, i32 calls, i32 values, the values times
// calls; then, possibly, i32 chunks, i32 length, name of the text.
class DatReader {
  public:
    DatReader(std::span<const std::byte> bytes, const std::filesystem::path &path)
        : rest_(bytes), path_(path) {}

    int32_t number() {
        int32_t value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    int32_t count(size_t unit) {
        const int32_t n = number();
        if (n < 0 || static_cast<size_t>(n) > rest_.size() / unit)
            refuse_file(path_, "is damaged, or not an importance matrix");
        return n;
    }
    std::string text() {
        const auto bytes = take(static_cast<size_t>(count(1)));
        return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
    }
    std::vector<float> floats() {
        std::vector<float> values(static_cast<size_t>(count(sizeof(float))));
        const auto bytes = take(values.size() * sizeof(float));
        if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
        return values;
    }
    bool at_end() const { return rest_.empty(); }

  private:
    std::span<const std::byte> take(size_t bytes) {
        if (bytes > rest_.size()) refuse_file(path_, "is cut off, or not an importance matrix");
        const auto taken = rest_.first(bytes);
        rest_ = rest_.subspan(bytes);
        return taken;
    }

    std::span<const std::byte> rest_;
    const std::filesystem::path &path_;
};

}  // namespace

void refuse_file(const std::filesystem::path &path, const std::string &what) {
    throw QuantizeError(gguf::printable(path.native(), 1024) + ": " + what);
}

Importance Importance::load(const std::filesystem::path &path) {
    const gguf::Mapping mapping(path);
    const std::span<const std::byte> bytes = mapping.bytes();
    Importance result;
    if (bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0) {
        const gguf::File file = gguf::File::open(path);
        read_sums(file, path, result.entries_);
        if (const gguf::Value *chunks = file.find("imatrix.chunk_count"))
            result.chunks_ = static_cast<uint32_t>(chunks->as_int().value_or(0));
        if (const gguf::Value *datasets = file.find("imatrix.datasets"))
            if (const auto names = datasets->as_strings(); !names.empty()) result.dataset_ = names.front();
    } else {
        DatReader reader(bytes, path);
        for (int32_t left = reader.count(12); left > 0; --left) {
            const std::string name = reader.text();
            const int32_t calls = reader.number();
            std::vector<float> values = reader.floats();
            if (calls > 0)
                for (float &value : values) value /= static_cast<float>(calls);
            result.entries_[name] = std::move(values);
        }
        if (!reader.at_end()) {
            result.chunks_ = static_cast<uint32_t>(reader.number());
            if (!reader.at_end()) result.dataset_ = reader.text();
        }
    }
    if (result.entries_.empty()) refuse_file(path, "holds no importance matrix");
    for (const auto &[name, values] : result.entries_)
        for (const float value : values)
            if (!std::isfinite(value) || value < 0)
                refuse_file(path,
                            "tensor " + gguf::quoted(name) + " has values that are negative or not numbers");
    return result;
}

std::span<const float> Importance::find(std::string_view tensor) const {
    const auto found = entries_.find(tensor);
    return found == entries_.end() ? std::span<const float>{} : found->second;
}

}  // namespace runnel::quantize
