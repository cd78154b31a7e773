#include "gguf/writer.h"

#include <bit>
#include <cstring>
#include <string>
#include <unordered_set>

#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::gguf {
namespace {

constexpr uint32_t kDefaultAlignment = 32;

void append(std::vector<std::byte> &to, std::span<const std::byte> bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
}

template <class T>
void append_number(std::vector<std::byte> &to, T number) {
    append(to, std::as_bytes(std::span(&number, 1)));
}

void append_string(std::vector<std::byte> &to, std::string_view string) {
    append_number<uint64_t>(to, string.size());
    append(to, std::as_bytes(std::span(string)));
}

void append_array(std::vector<std::byte> &to, ValueType element, uint64_t size,
                  std::span<const std::byte> payload) {
    append_number(to, static_cast<uint32_t>(element));
    append_number(to, size);
    append(to, payload);
}

}  // namespace

void Array::push(ValueType type, std::span<const std::byte> bytes) {
    if (type != element_type_)
        throw std::logic_error("an array of " + std::string(name(element_type_)) + " cannot hold a " +
                               std::string(name(type)));
    append(bytes_, bytes);
    ++size_;
}

void Array::push(std::string_view string) {
    const uint64_t length = string.size();
    push(ValueType::String, std::as_bytes(std::span(&length, 1)));
    append(bytes_, std::as_bytes(std::span(string)));
}

void Array::push(const Array &array) {
    std::vector<std::byte> encoded;
    append_array(encoded, array.element_type(), array.size(), array.payload());
    push(ValueType::Array, encoded);
}

struct Writer::Impl {
    uint32_t alignment = kDefaultAlignment;
    std::vector<std::byte> metadata, table;  // encoded
    std::unordered_set<std::string> keys, names;
    std::vector<uint64_t> sizes;       // of the tensors' data
    uint64_t data_bytes = 0;           // the data offset of the next tensor
    std::unique_ptr<OutputFile> file;  // from start() to finish()
    size_t tensor = 0;                 // index of the tensor that write() fills
    uint64_t remaining = 0;            // bytes of that tensor still to be written

    uint64_t padding(uint64_t size) const { return (alignment - size % alignment) % alignment; }
    void expect_open(bool open) const {
        if ((file != nullptr) != open) throw std::logic_error("gguf::Writer: called out of order");
    }
    void write_padding(uint64_t size) {
        const std::vector<std::byte> zeros(padding(size));
        file->write(zeros);
    }
};

Writer::Writer(uint32_t alignment) : impl_(std::make_unique<Impl>()) {
    if (!std::has_single_bit(alignment) || alignment < 8)
        throw std::logic_error("gguf::Writer: bad alignment");
    impl_->alignment = alignment;
    if (alignment != kDefaultAlignment) add("general.alignment", alignment);
}
Writer::~Writer() = default;
Writer::Writer(Writer &&) noexcept = default;
Writer &Writer::operator=(Writer &&) noexcept = default;

void Writer::add(std::string_view key, ValueType type, std::span<const std::byte> payload) {
    impl_->expect_open(false);
    if (!impl_->keys.emplace(key).second)
        throw std::logic_error("metadata key " + quoted(key) + " exists already");
    append_string(impl_->metadata, key);
    append_number(impl_->metadata, static_cast<uint32_t>(type));
    append(impl_->metadata, payload);
}

void Writer::add(std::string_view key, std::string_view string) {
    add(key, ValueType::String, {});
    append_string(impl_->metadata, string);
}

void Writer::add(std::string_view key, const Array &array) {
    add(key, ValueType::Array, {});
    append_array(impl_->metadata, array.element_type(), array.size(), array.payload());
}

void Writer::add(std::string_view key, std::span<const std::string_view> strings) {
    Array array(ValueType::String);
    for (const std::string_view string : strings) array.push(string);
    add(key, array);
}

void Writer::add(std::string_view key, const Value &value) {
    add(key, value.type(), {});
    if (value.type() == ValueType::Array)
        append_array(impl_->metadata, value.element_type(), value.size(), value.payload());
    else if (value.type() == ValueType::String)
        append_string(impl_->metadata, *value.as_string());
    else
        append(impl_->metadata, value.payload());
}

bool Writer::has(std::string_view key) const {
    return impl_->keys.contains(std::string(key));
}

void Writer::add_tensor(std::string_view tensor, Type type, std::span<const int64_t> shape) {
    impl_->expect_open(false);
    if (!impl_->names.emplace(tensor).second)
        throw std::logic_error("tensor " + quoted(tensor) + " exists already");
    const int64_t row = shape.empty() ? 1 : shape[0];
    uint64_t rows = 1;
    bool valid = shape.size() <= 4 && row % traits(type).block_size == 0;
    for (const int64_t n : shape) valid &= n > 0;
    for (size_t d = 1; d < shape.size(); ++d)
        valid &= !__builtin_mul_overflow(rows, static_cast<uint64_t>(shape[d]), &rows);
    uint64_t size = 0;
    if (!valid || __builtin_mul_overflow(rows, row_bytes(type, row), &size))
        throw std::logic_error("tensor " + quoted(tensor) + " has an impossible shape");
    append_string(impl_->table, tensor);
    append_number(impl_->table, static_cast<uint32_t>(shape.size()));
    for (const int64_t n : shape) append_number(impl_->table, n);
    append_number(impl_->table, static_cast<uint32_t>(type));
    append_number(impl_->table, impl_->data_bytes);
    impl_->sizes.push_back(size);
    impl_->data_bytes += size + impl_->padding(size);
}

uint64_t Writer::file_bytes() const {
    constexpr uint64_t kFixed = 4 + sizeof(uint32_t) + 2 * sizeof(uint64_t);  // magic, version, counts
    const uint64_t header = kFixed + impl_->metadata.size() + impl_->table.size();
    return header + impl_->padding(header) + impl_->data_bytes;
}

void Writer::start(const std::filesystem::path &path, const OutputOptions &options) {
    impl_->expect_open(false);
    impl_->file = std::make_unique<OutputFile>(path, options);
    std::vector<std::byte> header;
    append(header, std::as_bytes(std::span(std::string_view("GGUF"))));
    append_number<uint32_t>(header, 3);
    append_number<uint64_t>(header, impl_->sizes.size());
    append_number<uint64_t>(header, impl_->keys.size());
    impl_->file->write(header);
    impl_->file->write(impl_->metadata);
    impl_->file->write(impl_->table);
    impl_->write_padding(header.size() + impl_->metadata.size() + impl_->table.size());
    impl_->remaining = impl_->sizes.empty() ? 0 : impl_->sizes.front();
}

void Writer::write(std::span<const std::byte> piece) {
    impl_->expect_open(true);
    if (piece.size() > impl_->remaining)
        throw std::logic_error("gguf::Writer: more data than the tensor has");
    impl_->file->write(piece);
    impl_->remaining -= piece.size();
    if (impl_->remaining > 0 || impl_->tensor == impl_->sizes.size()) return;
    impl_->write_padding(impl_->sizes[impl_->tensor]);
    if (++impl_->tensor < impl_->sizes.size()) impl_->remaining = impl_->sizes[impl_->tensor];
}

bool Writer::has_all_data() const {
    impl_->expect_open(true);
    return impl_->tensor == impl_->sizes.size();
}

void Writer::finish() {
    if (!has_all_data()) throw std::logic_error("gguf::Writer: tensor data is missing");
    impl_->file->commit();
    *this = Writer();
}

}  // namespace runnel::gguf
