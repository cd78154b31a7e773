// Writes GGUF files (version 3): metadata and tensor table first, then tensor data streamed in order.
//
//   Writer writer;
//   writer.add("general.architecture", "llama");
//   writer.add_tensor("token_embd.weight", Type::Q8_0, {width, vocab});
//   writer.start(path);                 // writes header and table; nothing can be added after this
//   writer.write(bytes);                // the data of the tensors, in pieces of any size
//   writer.finish();                    // now `path` exists, complete
//
// The file is an OutputFile (gguf/output_file.h): it is complete or absent, and never replaces a file that is
// read or must not be overwritten.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gguf/block.h"
#include "gguf/output_file.h"
#include "gguf/value.h"

namespace runnel::gguf {

template <class T>
concept Number = std::is_arithmetic_v<T>;

template <Number T>
constexpr ValueType value_type() {
    if constexpr (std::same_as<T, bool>) return ValueType::Bool;
    if constexpr (std::floating_point<T>) return sizeof(T) == 4 ? ValueType::F32 : ValueType::F64;
    constexpr ValueType kUnsigned[] = {ValueType::U8, ValueType::U16, ValueType::U32, ValueType::U64};
    constexpr ValueType kSigned[] = {ValueType::I8, ValueType::I16, ValueType::I32, ValueType::I64};
    constexpr int kLog = sizeof(T) == 8 ? 3 : sizeof(T) == 4 ? 2 : sizeof(T) == 2 ? 1 : 0;
    return std::is_signed_v<T> ? kSigned[kLog] : kUnsigned[kLog];
}

// An array value, built element by element in its file format.
class Array {
  public:
    explicit Array(ValueType element_type) : element_type_(element_type) {}
    template <Number T>
    explicit Array(std::span<const T> numbers) : element_type_(value_type<T>()) {
        for (const T number : numbers) push(number);
    }

    // Each throws std::logic_error if this is not the array's element type.
    template <Number T>
    void push(T number) {
        push(value_type<T>(), std::as_bytes(std::span(&number, 1)));
    }
    void push(std::string_view string);
    void push(const Array &array);

    ValueType element_type() const { return element_type_; }
    uint64_t size() const { return size_; }
    std::span<const std::byte> payload() const { return bytes_; }

  private:
    void push(ValueType type, std::span<const std::byte> bytes);
    ValueType element_type_;
    uint64_t size_ = 0;
    std::vector<std::byte> bytes_;
};

class Writer {
  public:
    // alignment: of tensor data, a power of two, at least 8; written as general.alignment unless it is 32.
    explicit Writer(uint32_t alignment = 32);
    ~Writer();
    Writer(Writer &&) noexcept;
    Writer &operator=(Writer &&) noexcept;

    // Adds metadata; the file has them in the order of the calls. Throw std::logic_error for a duplicate key.
    template <Number T>
    void add(std::string_view key, T number) {
        add(key, value_type<T>(), std::as_bytes(std::span(&number, 1)));
    }
    void add(std::string_view key, std::string_view string);
    void add(std::string_view key, const char *string) { add(key, std::string_view(string)); }
    void add(std::string_view key, const Array &array);
    template <Number T>
    void add(std::string_view key, std::span<const T> numbers) {
        add(key, Array(numbers));
    }
    void add(std::string_view key, std::span<const std::string_view> strings);
    void add(std::string_view key, const Value &value);  // a value read from a file, nested arrays included
    bool has(std::string_view key) const;

    // Adds a tensor; shape fastest first, 0..4 dimensions. Throws std::logic_error for a duplicate name, for
    // dimensions below 1, and for rows that are not whole blocks.
    void add_tensor(std::string_view name, Type type, std::span<const int64_t> shape);
    void add_tensor(std::string_view name, Type type, std::initializer_list<int64_t> shape) {
        add_tensor(name, type, std::span(shape.begin(), shape.size()));
    }

    // The size of the whole file if nothing more is added.
    uint64_t file_bytes() const;

    // Throw WriteError; std::logic_error if called out of order, if a piece extends beyond the end of its
    // tensor, or if finish() is called before all data are written.
    void start(const std::filesystem::path &path, const OutputOptions &options = {});
    void write(std::span<const std::byte> piece);
    void finish();
    bool has_all_data() const;  // after start(): finish() may be called

  private:
    struct Impl;
    void add(std::string_view key, ValueType type, std::span<const std::byte> payload);
    std::unique_ptr<Impl> impl_;
};

}  // namespace runnel::gguf
