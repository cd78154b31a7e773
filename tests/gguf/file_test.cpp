#include "gguf/file.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <string>

#include "gguf/printable.h"
#include "tests/support/cpu_time.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/temporary.h"

using namespace runnel::gguf;
using runnel::testing::GgufBytes;
using runnel::testing::least_seconds;
using runnel::testing::TemporaryDirectory;
using runnel::testing::write_file;
using namespace std::string_literals;

namespace {

// The message of the FileError that opening throws; "" if it succeeds.
std::string error_of(const GgufBytes &bytes) {
    try {
        bytes.open();
    } catch (const FileError &error) {
        CHECK_FALSE(error.missing);
        return error.what();
    }
    return "";
}

// The message for a file on disk, prefixed by "missing: " if FileError::missing is set.
std::string error_of(const std::filesystem::path &path) {
    try {
        File::open(path);
    } catch (const FileError &error) {
        return (error.missing ? "missing: "s : ""s) + error.what();
    }
    return "";
}

bool contains(const std::string &text, std::string_view part) {
    return text.find(part) != text.npos;
}
#define CHECK_SAYS(error, part)           \
    do {                                  \
        const std::string said = (error); \
        INFO("it says: " << said);        \
        CHECK(contains(said, part));      \
    } while (false)

constexpr uint32_t kF32 = 0, kQ4_0 = 2;

GgufBytes one_tensor(const std::vector<uint64_t> &shape, uint32_t type, uint64_t offset, size_t data) {
    return GgufBytes().header(1, 0).tensor("t", shape, type, offset).data(data);
}

}  // namespace

TEST_CASE("file: metadata values of all types are read") {
    for (const uint32_t version : {2u, 3u}) {
        GgufBytes bytes;
        bytes.header(0, 15, version);
        bytes.key("u8", ValueType::U8, uint8_t{200}).key("i8", ValueType::I8, int8_t{-100});
        bytes.key("u16", ValueType::U16, uint16_t{60000}).key("i16", ValueType::I16, int16_t{-30000});
        bytes.key("u32", ValueType::U32, 4000000000u).key("i32", ValueType::I32, -2000000000);
        bytes.key("f32", ValueType::F32, 0.25f).key("f64", ValueType::F64, 0.1);
        bytes.key("bool", ValueType::Bool, uint8_t{1}).key("string", ValueType::String).put_string("a\0b"s);
        bytes.key("u64", ValueType::U64, UINT64_MAX).key("i64", ValueType::I64, INT64_MIN);
        bytes.key("ints", ValueType::Array).array(ValueType::I16, 2).put(int16_t{-5}).put(int16_t{7});
        bytes.key("strings", ValueType::Array).array(ValueType::String, 2).put_string("x").put_string("");
        bytes.key("nested", ValueType::Array).array(ValueType::Array, 2);
        bytes.array(ValueType::F32, 1).put(1.5f).array(ValueType::Bool, 2).put(uint8_t{0}).put(uint8_t{1});
        const File file = bytes.open();
        CHECK(file.version() == version);
        CHECK(file.metadata().size() == 15);
        CHECK(file.metadata()[2].first == "u16");
        CHECK(file.find("u8")->as_int() == 200);
        CHECK(file.find("i8")->as_int() == -100);
        CHECK(file.find("u16")->as_int() == 60000);
        CHECK(file.find("i16")->as_int() == -30000);
        CHECK(file.find("u32")->as_int() == 4000000000);
        CHECK(file.find("i32")->as_float() == -2e9);
        CHECK(file.find("f32")->as_float() == 0.25);
        CHECK_FALSE(file.find("f32")->as_int());
        CHECK(file.find("f64")->as_float() == 0.1);
        CHECK(file.find("bool")->as_bool() == true);
        CHECK_FALSE(file.find("bool")->as_int());
        CHECK(file.find("string")->as_string() == "a\0b"s);
        CHECK_FALSE(file.find("string")->as_float());
        CHECK_FALSE(file.find("u64")->as_int());
        CHECK_FALSE(file.find("u64")->as_float());
        CHECK(file.find("i64")->as_int() == INT64_MIN);
        CHECK(file.find("i64")->as_float() == -0x1p63);
        CHECK(file.find("ints")->as_ints() == std::vector<int64_t>{-5, 7});
        CHECK(file.find("ints")->as_floats() == std::vector<float>{-5, 7});
        CHECK(file.find("ints")->as_strings().empty());
        CHECK(file.find("strings")->as_strings() == std::vector<std::string_view>{"x", ""});
        CHECK(file.find("strings")->as_ints().empty());
        const std::vector<Value> nested = file.find("nested")->elements();
        CHECK(nested.size() == 2);
        CHECK(nested[0].as_floats() == std::vector<float>{1.5f});
        CHECK(nested[1].as_ints() == std::vector<int64_t>{0, 1});
        CHECK(file.find("absent") == nullptr);
    }
}

TEST_CASE("file: the tensor table is read") {
    GgufBytes bytes;
    bytes.header(3, 1).key("general.alignment", ValueType::U32, 64u);
    bytes.tensor("b", {3, 5}, kF32, 64).tensor("a", {64}, kQ4_0, 0).tensor("scalar", {}, kF32, 128);
    bytes.data(132, 64);
    const File file = bytes.open();
    CHECK(file.alignment() == 64);
    REQUIRE(file.tensors().size() == 3);
    const Tensor &b = file.tensors()[0];
    CHECK(b.name == "b");
    CHECK(b.rank == 2);
    CHECK((b.shape[0] == 3 && b.shape[1] == 5 && b.shape[2] == 1 && b.shape[3] == 1));
    CHECK(b.elements() == 15);
    CHECK(b.bytes == 60);
    CHECK(b.offset == bytes.span().size() - 132 + 64);
    CHECK(b.data == bytes.span().data() + b.offset);
    CHECK(file.find_tensor("a")->bytes == 36);
    CHECK(file.find_tensor("scalar")->elements() == 1);
    CHECK(file.find_tensor("c") == nullptr);
}

TEST_CASE("file: a file with a tensor of a known but unsupported type opens") {
    const File file = one_tensor({32}, static_cast<uint32_t>(Type::Q8_1), 0, 36).open();
    CHECK_FALSE(traits(file.tensors()[0].type).supported);
}

TEST_CASE("file: broken headers and metadata are refused") {
    CHECK_SAYS(error_of(GgufBytes().header(0, UINT64_MAX)), "18446744073709551615 metadata entries");
    CHECK_SAYS(error_of(GgufBytes().header(UINT64_MAX / 2, 0)), "tensors at byte 24 cannot fit");
    CHECK_SAYS(error_of(GgufBytes().header(0, 0, 1)), "version 1; only versions 2 and 3");
    CHECK_SAYS(error_of(GgufBytes().header(0, 0, 4)), "version 4");
    CHECK_SAYS(error_of(GgufBytes().header(0, 0, 0x03000000)), "big-endian");
    const auto entry = [](auto fill) {
        GgufBytes bytes;
        bytes.header(0, 1);
        fill(bytes);
        return error_of(bytes);
    };
    CHECK_SAYS(entry([](auto &b) { b.key("k", ValueType{13}).put(uint64_t{0}); }),
               "'k': unknown value type 13");
    CHECK_SAYS(entry([](auto &b) { b.key("k", ValueType::Bool, uint8_t{2}); }), "neither 0 nor 1");
    CHECK_SAYS(entry([](auto &b) { b.key("k", ValueType::String).put(UINT64_MAX).put(1); }),
               "'k': 18446744073709551615 bytes at byte 45 reach beyond the end");
    CHECK_SAYS(
        entry([](auto &b) { b.key("k", ValueType::Array).array(ValueType::U64, UINT64_MAX / 4).put(1); }),
        "array elements of type u64");
    CHECK_SAYS(entry([](auto &b) { b.key(std::string(70000, 'k'), ValueType::U8, uint8_t{1}); }),
               "70000 bytes long");
    CHECK_SAYS(entry([](auto &b) {
                   b.key("deep", ValueType::Array);
                   for (int i = 0; i < 1000; ++i) b.array(ValueType::Array, 1);
                   b.array(ValueType::U8, 0);
               }),
               "nest deeper than 8");
    for (const uint32_t alignment : {0u, 4u, 48u, 0x80000000u})
        CHECK_SAYS(entry([&](auto &b) { b.key("general.alignment", ValueType::U32, alignment); }),
                   "not a power of two");
    CHECK_SAYS(entry([](auto &b) { b.key("general.alignment", ValueType::F32, 32.0f); }),
               "is not an integer");
    CHECK_SAYS(
        error_of(
            GgufBytes().header(0, 2).key("k", ValueType::U8, uint8_t{1}).key("k", ValueType::I8, uint8_t{1})),
        "metadata key 'k' appears twice");
}

TEST_CASE("file: damaged counts are refused, even if the file is large enough for them") {
    const TemporaryDirectory directory;
    const auto error_with_header = [&](uint64_t tensors, uint64_t key_values) {
        write_file(directory / "m.gguf", GgufBytes().header(tensors, key_values).span());
        std::filesystem::resize_file(directory / "m.gguf", uint64_t{1} << 36);  // a hole of zeros
        return error_of(directory / "m.gguf");
    };
    CHECK_SAYS(error_with_header(0, 1u << 30), "claims 1073741824 metadata entries");
    CHECK_SAYS(error_with_header(1u << 31, 0), "claims 2147483648 tensors");
    CHECK_SAYS(error_with_header(0, 100), "metadata entry 0: its name is empty");
    CHECK_SAYS(error_with_header(100, 0), "tensor 0: its name is empty");
}

TEST_CASE("file: broken tensor tables are refused") {
    CHECK(error_of(one_tensor({4}, kF32, 0, 16)).empty());
    CHECK_SAYS(error_of(one_tensor({4}, kF32, 0, 15)),
               "'t': 16 bytes at offset 0 of the data reach beyond the end");
    CHECK_SAYS(error_of(one_tensor({4}, kF32, UINT64_MAX - 31, 16)), "reach beyond the end");
    CHECK_SAYS(error_of(one_tensor({4}, kF32, 8, 64)), "not a multiple of the alignment 32");
    CHECK_SAYS(error_of(one_tensor({1, 1, 1, 1, 1}, kF32, 0, 16)), "5 dimensions");
    CHECK_SAYS(error_of(one_tensor({4, 0}, kF32, 0, 16)), "dimension 1 is 0");
    CHECK_SAYS(error_of(one_tensor({UINT64_MAX}, kF32, 0, 16)), "dimension 0 is 18446744073709551615");
    CHECK_SAYS(error_of(one_tensor({1ull << 32, 1ull << 31}, kF32, 0, 16)), "overflow");
    CHECK_SAYS(error_of(one_tensor({1ull << 62}, kF32, 0, 16)), "overflow");
    CHECK_SAYS(error_of(one_tensor({33}, kQ4_0, 0, 36)), "not a multiple of the 32");
    CHECK_SAYS(error_of(one_tensor({32}, 1000, 0, 36)), "unknown type 1000");
    CHECK_SAYS(error_of(one_tensor({32}, 31, 0, 36)), "type 31 was withdrawn");
    GgufBytes twice;
    twice.header(2, 0).tensor("t", {1}, kF32, 0).tensor("t", {1}, kF32, 32).data(64);
    CHECK_SAYS(error_of(twice), "tensor 't' appears twice");
    GgufBytes overlap;
    overlap.header(3, 0)
        .tensor("x", {9}, kF32, 0)
        .tensor("y", {1}, kF32, 64)
        .tensor("z", {1}, kF32, 32)
        .data(96);
    CHECK_SAYS(error_of(overlap), "'x' and 'z' overlap");
}

TEST_CASE("file: tensors of ik_llama.cpp's withdrawn types 142 and 143 are refused by their sizes") {
    // IQ2_TN: a float32 per row, 64 bytes per 256 weights. IQ1_TN: a float16 per row, 52 bytes per 256 weights.
    constexpr uint64_t kRows = 16, kColumns = 1024;
    struct Withdrawn {
        uint32_t type;
        uint64_t row_bytes;
        std::string_view read_as;
    };
    for (const Withdrawn &other :
         {Withdrawn{142, 4 + 4 * 64, "142 is read as pq2_0, not as the type that ik_llama.cpp"},
          Withdrawn{143, 2 + 4 * 52, "143 is read as ptq1_0, not as the type that ik_llama.cpp"}}) {
        CAPTURE(other.type);
        const uint64_t size = (kRows * other.row_bytes + 31) / 32 * 32;
        GgufBytes two, last;
        two.header(2, 0)
            .tensor("x", {kColumns, kRows}, other.type, 0)
            .tensor("y", {1}, kF32, size)
            .data(size + 1024);
        CHECK_SAYS(error_of(two), "'x' and 'y' overlap");
        CHECK_SAYS(error_of(two), other.read_as);
        last.header(1, 0).tensor("x", {kColumns, kRows}, other.type, 0).data(size);
        CHECK_SAYS(error_of(last), "beyond the end");
        CHECK_SAYS(error_of(last), other.read_as);
    }
    CHECK(one_tensor({128, 2}, 142, 0, 68).open().tensors()[0].bytes == 68);
    CHECK(one_tensor({128, 2}, 143, 0, 56).open().tensors()[0].bytes == 56);
}

TEST_CASE("file: messages are one printable line of bounded length") {
    const std::string nasty = "a\nb\033[31m\x7f\xff\xc2\x9b\xe2\x80\xae"s + std::string(1000, 'x');
    GgufBytes bytes;
    bytes.header(1, 0).tensor(nasty, {4}, kF32, 8).data(64);
    const std::string error = error_of(bytes);
    CHECK_SAYS(error, "'a\\x0ab\\x1b[31m\\x7f\\xff\\xc2\\x9b\\xe2\\x80\\xaexxx");
    CHECK(error.size() < 300);
    for (const char c : error) CHECK((c >= 0x20 && c < 0x7f));
    CHECK(printable("Grüße 日本語 🦜") == "Grüße 日本語 🦜");
    CHECK(printable("\xed\xa0\x80\xf8\xc0\x80") == "\\xed\\xa0\\x80\\xf8\\xc0\\x80");
    CHECK(printable("\xe6\x97") == "\\xe6\\x97");
    CHECK(printable("a\xd8\x9c\xe2\x80\xae"
                    "b") ==
          "a\\xd8\\x9c\\xe2\\x80\\xae"
          "b");  // reverses the direction of the line
    CHECK(printable("abcdef", 3) == "abc...");
}

TEST_CASE("file: files that are not GGUF are recognized") {
    const TemporaryDirectory directory;
    const auto error = [&](const std::string &content) {
        write_file(directory / "model.bin", std::as_bytes(std::span(content)));
        const std::string said = error_of(directory / "model.bin");
        CHECK(said.starts_with((directory / "model.bin").native()));
        return said;
    };
    CHECK_SAYS(error(""), "model.bin is empty");
    CHECK_SAYS(error("GG"), "truncated");
    CHECK_SAYS(error("GGUF\0\0\0\1\0\0\0\0"s), "big-endian");
    CHECK_SAYS(error("lmgg...."), "old ggml");
    CHECK_SAYS(error("tjgg\3\0\0\0"s), "old ggjt");
    CHECK_SAYS(error("algg\1\0\0\0"s), "old ggla");
    CHECK_SAYS(error("\x0a\0\0\0\0\0\0\0{\"a\":1   }"s), "safetensors");
    CHECK_SAYS(error("PK\3\4rest"), "PyTorch");
    CHECK_SAYS(error("\x80\2}q\0"s), "pickle");
    CHECK_SAYS(error("\x1f\x8b\x08"), "gzip");
    CHECK_SAYS(error("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull");
    CHECK_SAYS(error("<!DOCTYPE html>"), "web page");
    CHECK_SAYS(error("hello\nworld"), "it starts with 'hell'");
    CHECK_SAYS(error_of(directory / "none"), "missing: ");
    CHECK_SAYS(error_of(directory / "none"), "No such file");
    CHECK_SAYS(error_of(directory.path()), "missing: ");
    CHECK_SAYS(error_of(directory.path()), "is a directory");
    CHECK_SAYS(error_of(std::filesystem::path("/dev/null")), "not a regular file");
    std::filesystem::permissions(directory / "model.bin", std::filesystem::perms::none);
    if (geteuid() != 0) CHECK_SAYS(error_of(directory / "model.bin"), "missing: ");  // root can read anything
}

namespace {

struct SplitSet {
    TemporaryDirectory directory;
    std::filesystem::path path(int part) const {
        return directory / ("m-0000" + std::to_string(part) + "-of-00003.gguf");
    }
    void write(int part, uint16_t number, uint16_t count, const std::vector<std::string> &tensors,
               int32_t total = 3) {
        GgufBytes bytes;
        bytes.header(tensors.size(), part == 1 ? 4 : 3);
        bytes.key("split.no", ValueType::U16, number).key("split.count", ValueType::U16, count);
        bytes.key("split.tensors.count", ValueType::I32, total);
        if (part == 1) bytes.key("general.name", ValueType::String).put_string("whole");
        for (size_t i = 0; i < tensors.size(); ++i) bytes.tensor(tensors[i], {8}, kF32, 32 * i);
        bytes.data(32 * tensors.size());
        write_file(path(part), bytes.span());
    }
    void write_all() {
        write(1, 0, 3, {});
        write(2, 1, 3, {"a", "b"});
        write(3, 2, 3, {"c"});
    }
};

}  // namespace

TEST_CASE("file: a split set opens from any part") {
    SplitSet set;
    set.write_all();
    for (int part = 1; part <= 3; ++part) {
        const File file = File::open(set.path(part));
        CHECK(file.parts() == 3);
        CHECK(file.find("general.name")->as_string() == "whole");
        REQUIRE(file.tensors().size() == 3);
        CHECK(file.find_tensor("b")->part == 1);
        CHECK(file.find_tensor("c")->part == 2);
        uint64_t bytes = 0;
        for (int i = 1; i <= 3; ++i) bytes += std::filesystem::file_size(set.path(i));
        CHECK(file.file_bytes() == bytes);
    }
}

TEST_CASE("file: split sets that do not fit together are refused") {
    SplitSet set;
    set.write_all();
    set.write(3, 2, 3, {"a"});
    CHECK_SAYS(error_of(set.path(1)), "tensor 'a' appears twice");
    set.write(3, 1, 3, {"c"});
    CHECK_SAYS(error_of(set.path(1)), "its metadata says part 2 of 3 of a split model, not part 3 of 3");
    set.write(3, 2, 4, {"c"});
    CHECK_SAYS(error_of(set.path(1)), "part 3 of 4");
    set.write(3, 3, 3, {"c"});
    CHECK_SAYS(error_of(set.path(1)), "is invalid");
    set.write(3, 2, 3, {"c", "d"});
    CHECK_SAYS(error_of(set.path(2)), "split.tensors.count is 3, but the parts hold 4");
    std::filesystem::remove(set.path(3));
    CHECK_SAYS(error_of(set.path(2)), "missing: " + set.path(3).native());
    std::filesystem::rename(set.path(2), set.directory / "renamed.gguf");
    CHECK_SAYS(error_of(set.directory / "renamed.gguf"), "does not end in -00002-of-00003.gguf");
}

TEST_CASE("file: an entry of a large table takes no more work than one of a small table") {
    constexpr int kSmall = 1 << 11, kLarge = 1 << 17;
    const auto tensors = [](int count) {
        GgufBytes bytes;
        bytes.header(static_cast<uint64_t>(count), 0);
        for (int i = 0; i < count; ++i)
            bytes.tensor("blk.weight." + std::to_string(i), {8}, kF32, 32 * static_cast<uint64_t>(i));
        bytes.data(32 * static_cast<size_t>(count));
        return bytes;
    };
    const auto vocabulary = [](int count) {
        GgufBytes bytes;
        bytes.header(0, 1).key("tokenizer.ggml.tokens", ValueType::Array);
        bytes.array(ValueType::String, static_cast<uint64_t>(count));
        for (int i = 0; i < count; ++i) bytes.put_string("token" + std::to_string(i));
        return bytes;
    };
    const auto seconds = [](const GgufBytes &bytes) { return least_seconds([&] { bytes.open(); }); };
    // Caches explain a small factor; a quadratic search would take 64 times as long.
    constexpr double kMost = 16.0 * kLarge / kSmall;
    CHECK(seconds(tensors(kLarge)) < kMost * seconds(tensors(kSmall)));
    const GgufBytes large = vocabulary(kLarge);
    CHECK(seconds(large) < kMost * seconds(vocabulary(kSmall)));
    CHECK(large.open().find("tokenizer.ggml.tokens")->as_strings()[kLarge - 1] ==
          "token" + std::to_string(kLarge - 1));
}

TEST_CASE("file: moving keeps every view") {
    const TemporaryDirectory directory;
    GgufBytes bytes;
    bytes.header(1, 1).key("k", ValueType::String).put_string("v").tensor("t", {4}, kF32, 0).data(16);
    write_file(directory / "m.gguf", bytes.span());
    File first = File::open(directory / "m.gguf");
    const Tensor *tensor = first.find_tensor("t");
    const File second = std::move(first);
    CHECK(second.find_tensor("t") == tensor);
    CHECK(tensor->data[15] == std::byte{0});
    CHECK(second.find("k")->as_string() == "v");
}
