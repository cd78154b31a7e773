#include "gguf/part.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>

#include "gguf/identify.h"
#include "gguf/printable.h"

namespace runnel::gguf {
namespace {

constexpr std::string_view kMagic = "GGUF";
// Far beyond any real file. A damaged count must not make the parser read gigabytes of weights as entries.
constexpr uint64_t kMaxKeyValues = 1 << 16, kMaxTensors = 1 << 20;
constexpr uint64_t kFirstReserve = 4096;  // most entries reserved before any is read
constexpr uint64_t kMaxName = 65535;      // of a key or a tensor, as the specification limits keys
constexpr uint64_t kSmallestKeyValue = 8 + 1 + 4 + 1;    // key, type, value
constexpr uint64_t kSmallestTensor = 8 + 1 + 4 + 4 + 8;  // name, rank 0, type, offset
constexpr uint64_t kMinAlignment = 8, kMaxAlignment = uint64_t{1} << 30;

struct Counts {
    uint64_t tensors, key_values;
};

Counts read_header(Cursor &cursor, std::span<const std::byte> bytes, uint32_t &version) {
    const std::string_view all(reinterpret_cast<const char *>(bytes.data()), bytes.size());
    if (!all.starts_with(kMagic)) throw Malformed(identify(bytes));
    cursor.take(kMagic.size());
    version = cursor.read<uint32_t>();
    // A swapped version number reveals the byte order: no version will ever be a multiple of 65536.
    if (version != 0 && (version & 0xffff) == 0)
        throw Malformed("is a big-endian GGUF file; only little-endian files are supported");
    if (version != 2 && version != 3)
        throw Malformed("is a GGUF file of version " + std::to_string(version) +
                        "; only versions 2 and 3 are supported" +
                        (version == 1 ? ", get a newer conversion of the model" : ""));
    Counts counts{};
    counts.tensors = cursor.read<uint64_t>();
    counts.key_values = cursor.read<uint64_t>();
    return counts;
}

// Runs `read` and prefixes its error messages with `context`.
template <class Read>
auto within(const auto &context, Read read) {
    try {
        return read();
    } catch (const Malformed &error) {
        throw Malformed(context() + ": " + error.what());
    }
}

void refuse_more(uint64_t count, uint64_t most, std::string_view things) {
    if (count > most)
        throw Malformed("claims " + std::to_string(count) + " " + std::string(things) + "; more than " +
                        std::to_string(most) + " are implausible (damaged)");
}

std::string_view read_name(Cursor &cursor) {
    const std::string_view name = cursor.read_string();
    if (name.empty()) throw Malformed("its name is empty");
    if (name.size() > kMaxName) throw Malformed("its name is " + std::to_string(name.size()) + " bytes long");
    return name;
}

void read_metadata(Cursor &cursor, uint64_t count, Part &part) {
    cursor.expect(count, kSmallestKeyValue, "metadata entries");
    refuse_more(count, kMaxKeyValues, "metadata entries");
    part.metadata.reserve(std::min(count, kFirstReserve));
    part.keys.reserve(std::min(count, kFirstReserve));
    for (uint64_t i = 0; i < count; ++i) {
        const std::string_view key =
            within([&] { return "metadata entry " + std::to_string(i); }, [&] { return read_name(cursor); });
        const Value value = within([&] { return "metadata key " + quoted(key); },
                                   [&] { return Value::read(cursor, read_value_type(cursor)); });
        part.metadata.emplace_back(key, value);
        part.keys.add(key);
    }
    if (const auto twice = part.keys.build())
        throw Malformed("metadata key " + quoted(*twice) + " appears twice");
}

Type read_type(Cursor &cursor) {
    const auto id = cursor.read<uint32_t>();
    const TypeTraits *known = find_type(id);
    if (known != nullptr) return known->type;
    constexpr uint32_t kWithdrawn[] = {4, 5, 31, 32, 33, 36, 37, 38};
    const bool withdrawn =
        std::find(std::begin(kWithdrawn), std::end(kWithdrawn), id) != std::end(kWithdrawn);
    throw Malformed(withdrawn ? "type " + std::to_string(id) +
                                    " was withdrawn from the format; quantize the model again"
                              : "unknown type " + std::to_string(id));
}

// Size in bytes; throws Malformed if it does not fit in 63 bits.
uint64_t data_bytes(const Tensor &tensor) {
    const TypeTraits &type = traits(tensor.type);
    if (tensor.shape[0] % type.block_size != 0)
        throw Malformed("rows of " + std::to_string(tensor.shape[0]) + " weights are not a multiple of the " +
                        std::to_string(type.block_size) + " in a block of " + std::string(type.name));
    int64_t elements = 1, bytes = 0;
    bool overflow = false;
    for (const int64_t n : tensor.shape) overflow |= __builtin_mul_overflow(elements, n, &elements);
    overflow |=
        __builtin_mul_overflow(elements / type.block_size, static_cast<int64_t>(type.block_bytes), &bytes);
    if (overflow) throw Malformed("its dimensions overflow");
    return static_cast<uint64_t>(bytes);
}

// A row of the tensor table; `offset` is still relative to the data.
void read_tensor(Cursor &cursor, Tensor &tensor) {
    tensor.rank = cursor.read<uint32_t>();
    if (tensor.rank > 4) throw Malformed(std::to_string(tensor.rank) + " dimensions; at most 4 are possible");
    for (uint32_t d = 0; d < 4; ++d) {
        const uint64_t n = d < tensor.rank ? cursor.read<uint64_t>() : 1;
        if (n == 0 || n > INT64_MAX)
            throw Malformed("dimension " + std::to_string(d) + " is " + std::to_string(n));
        tensor.shape[d] = static_cast<int64_t>(n);
    }
    tensor.type = read_type(cursor);
    tensor.offset = cursor.read<uint64_t>();
    tensor.bytes = data_bytes(tensor);
}

void read_tensors(Cursor &cursor, uint64_t count, Part &part) {
    cursor.expect(count, kSmallestTensor, "tensors");
    refuse_more(count, kMaxTensors, "tensors");
    part.tensors.reserve(std::min(count, kFirstReserve));
    for (uint64_t i = 0; i < count; ++i) {
        Tensor &tensor = part.tensors.emplace_back();
        tensor.name =
            within([&] { return "tensor " + std::to_string(i); }, [&] { return read_name(cursor); });
        within([&] { return "tensor " + quoted(tensor.name); }, [&] { read_tensor(cursor, tensor); });
    }
}

uint64_t read_alignment(const Part &part) {
    const int64_t alignment = part.integer("general.alignment", 32);
    const auto value = static_cast<uint64_t>(alignment);
    if (alignment < 0 || !std::has_single_bit(value) || value < kMinAlignment || value > kMaxAlignment)
        throw Malformed("general.alignment is " + std::to_string(alignment) +
                        ", not a power of two from 8 to 2^30");
    return value;
}

// What to add to a message about a tensor whose data end too early.
std::string other_meaning(const Tensor &tensor) {
    if (tensor.type != Type::PQ2_0 && tensor.type != Type::PTQ1_0) return "";
    return "; its type " + std::to_string(static_cast<uint32_t>(tensor.type)) + " is read as " +
           std::string(traits(tensor.type).name) + ", not as the type that ik_llama.cpp withdrew";
}

// Makes relative offsets absolute and checks that the data are within the file.
void place_tensors(uint64_t table_end, std::span<const std::byte> bytes, Part &part) {
    const uint64_t start = (table_end + part.alignment - 1) / part.alignment * part.alignment;
    for (Tensor &tensor : part.tensors) {
        const uint64_t relative = tensor.offset;
        if (relative % part.alignment != 0)
            throw Malformed("tensor " + quoted(tensor.name) + ": offset " + std::to_string(relative) +
                            " is not a multiple of the alignment " + std::to_string(part.alignment));
        if (start > bytes.size() || relative > bytes.size() - start ||
            tensor.bytes > bytes.size() - start - relative)
            throw Malformed(
                "tensor " + quoted(tensor.name) + ": " + std::to_string(tensor.bytes) + " bytes at offset " +
                std::to_string(relative) + " of the data reach beyond the end of the file at byte " +
                std::to_string(bytes.size()) + " (truncated or damaged" + other_meaning(tensor) + ")");
        tensor.offset = start + relative;
        tensor.data = bytes.data() + tensor.offset;
    }
}

void refuse_overlaps(const std::vector<Tensor> &tensors) {
    std::vector<const Tensor *> order;
    order.reserve(tensors.size());
    for (const Tensor &tensor : tensors) order.push_back(&tensor);
    const auto before = [](const Tensor *a, const Tensor *b) { return a->offset < b->offset; };
    if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
    for (size_t i = 1; i < order.size(); ++i)
        if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset)
            throw Malformed("the data of tensors " + quoted(order[i - 1]->name) + " and " +
                            quoted(order[i]->name) + " overlap" + other_meaning(*order[i - 1]));
}

}  // namespace

const Value *Part::find(std::string_view key) const {
    const auto at = keys.find(key);
    return at ? &metadata[*at].second : nullptr;
}

int64_t Part::integer(std::string_view key, int64_t absent) const {
    const Value *value = find(key);
    if (value == nullptr) return absent;
    if (const auto number = value->as_int()) return *number;
    throw Malformed("metadata key " + quoted(key) + " is not an integer");
}

Part read_part(std::span<const std::byte> bytes) {
    Part part;
    Cursor cursor(bytes);
    const Counts counts = read_header(cursor, bytes, part.version);
    read_metadata(cursor, counts.key_values, part);
    part.alignment = read_alignment(part);
    read_tensors(cursor, counts.tensors, part);
    place_tensors(cursor.at(), bytes, part);
    refuse_overlaps(part.tensors);
    return part;
}

}  // namespace runnel::gguf
