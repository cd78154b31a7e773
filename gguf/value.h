// Metadata values of a GGUF file: typed views of its bytes, without copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "gguf/cursor.h"

namespace runnel::gguf {

// The ids used in files.
enum class ValueType : uint32_t {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
};

// "u8", "string", "array", ...
std::string_view name(ValueType type) noexcept;

// Bytes of a value of a fixed-size type; 0 for strings and arrays.
uint32_t fixed_size(ValueType type) noexcept;

// The deepest nesting of arrays.
inline constexpr int kMaxArrayDepth = 8;

// Cheap to copy; valid as long as the bytes that it points to (its File).
class Value {
  public:
    ValueType type() const { return type_; }
    ValueType element_type() const { return element_type_; }  // of an array; meaningless otherwise
    uint64_t size() const { return size_; }  // elements of an array, bytes of a string, else 1

    // Conversions that preserve the value: integer types that fit, f32 and f64, integers that a double holds
    // exactly. nullopt if the type does not convert. Bool converts only to bool.
    std::optional<int64_t> as_int() const;
    std::optional<double> as_float() const;
    std::optional<bool> as_bool() const;
    std::optional<std::string_view> as_string() const;  // bytes as stored: not necessarily valid UTF-8

    // The elements of an array, converted as above; empty if it is not an array or an element does not
    // convert. as_ints converts bools to 0 and 1. They allocate up to 8 bytes per byte of the file: check
    // size() first if the array can have any length.
    std::vector<int64_t> as_ints() const;
    std::vector<float> as_floats() const;
    std::vector<std::string_view> as_strings() const;

    // Calls each(index, Value) for the elements of an array in order; does nothing for other types.
    template <class Each>
    void for_each(Each each) const {
        if (type_ != ValueType::Array) return;
        Cursor cursor(payload());
        for (uint64_t i = 0; i < size_; ++i) each(i, read(cursor, element_type_));
    }
    // Calls each(index, string_view) for the elements of an array of strings; does nothing for other types.
    template <class Each>
    void for_each_string(Each each) const {
        if (type_ != ValueType::Array || element_type_ != ValueType::String) return;
        Cursor cursor(payload());
        for (uint64_t i = 0; i < size_; ++i) each(i, cursor.read_string());
    }
    std::vector<Value> elements() const;

    // The bytes in the file: the number, the characters of a string, the encoded elements of an array.
    std::span<const std::byte> payload() const { return {data_, bytes_}; }

    // Checks and skips the value of type `type` at the cursor. Throws Malformed. Takes time linear in the
    // bytes of the value and allocates nothing.
    static Value read(Cursor &cursor, ValueType type, int depth = 0);

  private:
    static Value read_array(Cursor &cursor, int depth);

    ValueType type_ = ValueType::U8;
    ValueType element_type_ = ValueType::U8;
    const std::byte *data_ = nullptr;
    uint64_t size_ = 0, bytes_ = 0;
};

// Reads a value type at the cursor. Throws Malformed for an unknown id.
ValueType read_value_type(Cursor &cursor);

}  // namespace runnel::gguf
