#include "gguf/value.h"

#include <cstring>
#include <limits>
#include <utility>

namespace runnel::gguf {
namespace {

template <class T>
T load(const std::byte *data) {
    T value;
    std::memcpy(&value, data, sizeof(T));
    return value;
}

// Calls use(number) with the number at `data`; returns false if `type` is not a number type.
template <class Use>
bool with_number(ValueType type, const std::byte *data, Use use) {
    switch (type) {
        case ValueType::U8:
            return use(load<uint8_t>(data)), true;
        case ValueType::I8:
            return use(load<int8_t>(data)), true;
        case ValueType::U16:
            return use(load<uint16_t>(data)), true;
        case ValueType::I16:
            return use(load<int16_t>(data)), true;
        case ValueType::U32:
            return use(load<uint32_t>(data)), true;
        case ValueType::I32:
            return use(load<int32_t>(data)), true;
        case ValueType::U64:
            return use(load<uint64_t>(data)), true;
        case ValueType::I64:
            return use(load<int64_t>(data)), true;
        case ValueType::F32:
            return use(load<float>(data)), true;
        case ValueType::F64:
            return use(load<double>(data)), true;
        default:
            return false;
    }
}

// Whether a double holds the integer exactly: its highest and lowest set bits span at most 53 bits.
template <class T>
bool exact_in_double(T number) {
    const auto d = static_cast<double>(number);
    constexpr double kTop = 9223372036854775808.0;  // 2^63
    if (std::is_unsigned_v<T>)
        return d < 2 * kTop && static_cast<uint64_t>(d) == static_cast<uint64_t>(number);
    return d < kTop && static_cast<int64_t>(d) == static_cast<int64_t>(number);
}

}  // namespace

std::string_view name(ValueType type) noexcept {
    constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
    return kNames[static_cast<uint32_t>(type)];
}

uint32_t fixed_size(ValueType type) noexcept {
    constexpr uint32_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return kSizes[static_cast<uint32_t>(type)];
}

std::optional<int64_t> Value::as_int() const {
    std::optional<int64_t> result;
    with_number(type_, data_, [&](auto number) {
        if constexpr (std::is_integral_v<decltype(number)>)
            if (std::in_range<int64_t>(number)) result = static_cast<int64_t>(number);
    });
    return result;
}

std::optional<double> Value::as_float() const {
    std::optional<double> result;
    with_number(type_, data_, [&](auto number) {
        if constexpr (std::is_integral_v<decltype(number)>) {
            if (exact_in_double(number)) result = static_cast<double>(number);
        } else {
            result = number;
        }
    });
    return result;
}

std::optional<bool> Value::as_bool() const {
    if (type_ != ValueType::Bool) return std::nullopt;
    return load<uint8_t>(data_) != 0;
}

std::optional<std::string_view> Value::as_string() const {
    if (type_ != ValueType::String) return std::nullopt;
    return std::string_view(reinterpret_cast<const char *>(data_), bytes_);
}

std::vector<int64_t> Value::as_ints() const {
    std::vector<int64_t> result;
    if (type_ != ValueType::Array || fixed_size(element_type_) == 0) return result;
    result.reserve(size_);
    for_each([&](uint64_t, const Value &element) {
        if (const auto number = element.as_int())
            result.push_back(*number);
        else if (const auto flag = element.as_bool())
            result.push_back(*flag);
    });
    if (result.size() != size_) result.clear();
    return result;
}

std::vector<float> Value::as_floats() const {
    std::vector<float> result;
    if (type_ != ValueType::Array || fixed_size(element_type_) == 0) return result;
    result.reserve(size_);
    for_each([&](uint64_t, const Value &element) {
        if (const auto number = element.as_float()) result.push_back(static_cast<float>(*number));
    });
    if (result.size() != size_) result.clear();
    return result;
}

std::vector<std::string_view> Value::as_strings() const {
    std::vector<std::string_view> result;
    if (type_ != ValueType::Array || element_type_ != ValueType::String) return result;
    result.reserve(size_);
    for_each_string([&](uint64_t, std::string_view s) { result.push_back(s); });
    return result;
}

std::vector<Value> Value::elements() const {
    std::vector<Value> result;
    if (type_ != ValueType::Array) return result;
    result.reserve(size_);
    for_each([&](uint64_t, const Value &element) { result.push_back(element); });
    return result;
}

ValueType read_value_type(Cursor &cursor) {
    const uint64_t at = cursor.at();
    const auto id = cursor.read<uint32_t>();
    if (id > static_cast<uint32_t>(ValueType::F64))
        throw Malformed("unknown value type " + std::to_string(id) + " at byte " + std::to_string(at));
    return static_cast<ValueType>(id);
}

Value Value::read(Cursor &cursor, ValueType type, int depth) {
    if (type == ValueType::Array) return read_array(cursor, depth + 1);
    Value value;
    value.type_ = type;
    const bool string = type == ValueType::String;
    const auto bytes = cursor.take(string ? cursor.read<uint64_t>() : fixed_size(type));
    value.data_ = bytes.data();
    value.bytes_ = bytes.size();
    value.size_ = string ? bytes.size() : 1;
    if (type == ValueType::Bool && load<uint8_t>(value.data_) > 1)
        throw Malformed("a bool at byte " + std::to_string(cursor.at() - 1) + " is neither 0 nor 1");
    return value;
}

Value Value::read_array(Cursor &cursor, int depth) {
    if (depth > kMaxArrayDepth)
        throw Malformed("arrays nest deeper than " + std::to_string(kMaxArrayDepth) + " levels");
    Value value;
    value.type_ = ValueType::Array;
    value.element_type_ = read_value_type(cursor);
    value.size_ = cursor.read<uint64_t>();
    const ValueType element = value.element_type_;
    const uint32_t width = fixed_size(element);
    const uint64_t smallest = element == ValueType::String ? 8 : element == ValueType::Array ? 12 : width;
    cursor.expect(value.size_, smallest, "array elements of type " + std::string(name(element)));
    const uint64_t start = cursor.at();
    value.data_ = cursor.take(0).data();
    if (width > 0 && element != ValueType::Bool)
        cursor.take(value.size_ * width);
    else
        for (uint64_t i = 0; i < value.size_; ++i) read(cursor, element, depth);
    value.bytes_ = cursor.at() - start;
    return value;
}

}  // namespace runnel::gguf
