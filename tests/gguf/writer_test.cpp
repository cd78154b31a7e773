#include "gguf/writer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "gguf/file.h"
#include "tests/support/temporary.h"

using namespace runnel::gguf;
using runnel::testing::read_bytes;
using runnel::testing::TemporaryDirectory;

namespace {

// Writes what `file` holds.
void copy(const File &file, const std::filesystem::path &path) {
    Writer writer(static_cast<uint32_t>(file.alignment()));
    for (const auto &[key, value] : file.metadata())
        if (!writer.has(key)) writer.add(key, value);
    for (const Tensor &t : file.tensors()) writer.add_tensor(t.name, t.type, std::span(t.shape, t.rank));
    writer.start(path);
    for (const Tensor &t : file.tensors()) {
        const std::span<const std::byte> data(t.data, t.bytes);
        writer.write(data.first(t.bytes / 3));  // in two pieces
        writer.write(data.subspan(t.bytes / 3));
    }
    writer.finish();
}

void write_everything(const std::filesystem::path &path) {
    Writer writer(64);
    writer.add("u8", uint8_t{255});
    writer.add("i8", int8_t{-1});
    writer.add("u16", uint16_t{65535});
    writer.add("i16", int16_t{-2});
    writer.add("u32", 4000000000u);
    writer.add("i32", -3);
    writer.add("u64", UINT64_MAX);
    writer.add("i64", INT64_MIN);
    writer.add("f32", 0.5f);
    writer.add("f64", 0.1);
    writer.add("bool", true);
    writer.add("string", "text");
    const std::vector<float> floats = {1, 2, 3};
    writer.add("floats", std::span<const float>(floats));
    const std::vector<std::string_view> strings = {"a", "", "c"};
    writer.add("strings", strings);
    Array nested(ValueType::Array), flags(ValueType::Bool);
    flags.push(true);
    flags.push(false);
    nested.push(flags);
    nested.push(Array(ValueType::String));
    writer.add("nested", nested);
    writer.add_tensor("first", Type::F32, {3, 2});
    writer.add_tensor("second", Type::Q8_0, {32});
    writer.start(path);
    std::vector<std::byte> data(24 + 34);
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
    writer.write(std::span(data).first(24));
    writer.write(std::span(data).subspan(24));
    writer.finish();
}

}  // namespace

TEST_CASE("writer: every kind of value reads back") {
    const TemporaryDirectory directory;
    write_everything(directory / "m.gguf");
    const File file = File::open(directory / "m.gguf");
    CHECK(file.version() == 3);
    CHECK(file.alignment() == 64);
    CHECK(file.find("general.alignment")->as_int() == 64);
    CHECK(file.find("u8")->as_int() == 255);
    CHECK(file.find("i8")->as_int() == -1);
    CHECK(file.find("u16")->as_int() == 65535);
    CHECK(file.find("i16")->as_int() == -2);
    CHECK(file.find("u32")->as_int() == 4000000000);
    CHECK(file.find("i32")->as_int() == -3);
    CHECK(file.find("u64")->type() == ValueType::U64);
    CHECK(file.find("i64")->as_int() == INT64_MIN);
    CHECK(file.find("f32")->type() == ValueType::F32);
    CHECK(file.find("f64")->as_float() == 0.1);
    CHECK(file.find("bool")->as_bool() == true);
    CHECK(file.find("string")->as_string() == "text");
    CHECK(file.find("floats")->as_floats() == std::vector<float>{1, 2, 3});
    CHECK(file.find("strings")->as_strings() == std::vector<std::string_view>{"a", "", "c"});
    CHECK(file.find("nested")->elements()[0].as_ints() == std::vector<int64_t>{1, 0});
    CHECK(file.find("nested")->elements()[1].element_type() == ValueType::String);
    const Tensor &first = *file.find_tensor("first"), &second = *file.find_tensor("second");
    CHECK(first.offset % 64 == 0);
    CHECK(first.data[23] == std::byte{23});
    CHECK(second.shape[0] == 32);
    CHECK(second.data[33] == std::byte{57});
}

TEST_CASE("writer: a copy through the reader is the same file") {
    const TemporaryDirectory directory;
    write_everything(directory / "one.gguf");
    copy(File::open(directory / "one.gguf"), directory / "two.gguf");
    CHECK(read_bytes(directory / "one.gguf") == read_bytes(directory / "two.gguf"));
    const std::filesystem::path demo = "tests/models/demo-q8_0.gguf";  // written by another program
    copy(File::open(demo), directory / "demo.gguf");
    CHECK(read_bytes(demo) == read_bytes(directory / "demo.gguf"));
}

TEST_CASE("writer: an unfinished file does not appear and leaves nothing behind") {
    const TemporaryDirectory directory;
    write_everything(directory / "m.gguf");
    const auto before = read_bytes(directory / "m.gguf");
    {
        Writer writer;
        writer.add_tensor("t", Type::F32, {1024});
        writer.start(directory / "m.gguf");
        writer.write(std::vector<std::byte>(100));
        CHECK_THROWS_AS(writer.finish(), std::logic_error);
        CHECK_THROWS_AS(writer.write(std::vector<std::byte>(4000)), std::logic_error);
        CHECK_THROWS_AS(writer.add("k", 1), std::logic_error);
    }
    CHECK(read_bytes(directory / "m.gguf") == before);
    const auto files = std::filesystem::directory_iterator(directory.path());
    CHECK(std::distance(begin(files), end(files)) == 1);
}

TEST_CASE("writer: misuse is refused") {
    Writer writer;
    writer.add("k", 1);
    CHECK(writer.has("k"));
    CHECK_THROWS_AS(writer.add("k", 2), std::logic_error);
    writer.add_tensor("t", Type::F32, {1});
    CHECK_THROWS_AS(writer.add_tensor("t", Type::F32, {1}), std::logic_error);
    CHECK_THROWS_AS(writer.add_tensor("a", Type::Q4_0, {33}), std::logic_error);
    CHECK_THROWS_AS(writer.add_tensor("b", Type::F32, {0}), std::logic_error);
    CHECK_THROWS_AS(writer.add_tensor("c", Type::F32, {1, 1, 1, 1, 1}), std::logic_error);
    CHECK_THROWS_AS(writer.add_tensor("d", Type::F32, {INT64_MAX, INT64_MAX}), std::logic_error);
    CHECK_THROWS_AS(Array(ValueType::String).push(1), std::logic_error);
    CHECK_THROWS_AS(writer.write({}), std::logic_error);
}

TEST_CASE("writer: errors of the system are reported") {
    const auto error_of = [](const std::filesystem::path &path, size_t bytes) {
        Writer writer;
        writer.add_tensor("t", Type::I8, {static_cast<int64_t>(bytes)});
        try {
            writer.start(path);
            writer.write(std::vector<std::byte>(bytes));
            writer.finish();
        } catch (const WriteError &error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(error_of("/dev/full", 10) == "cannot write /dev/full: No space left on device");
    CHECK(error_of("/dev/full", 5'000'000) == "cannot write /dev/full: No space left on device");
    CHECK(error_of("/dev/null", 5'000'000).empty());
    const TemporaryDirectory directory;
    CHECK(error_of(directory / "no/such", 10).ends_with("such: No such file or directory"));
    CHECK(error_of(directory.path(), 10).ends_with("Is a directory"));
}

TEST_CASE("writer: a symbolic link stays a link") {
    const TemporaryDirectory directory;
    write_everything(directory / "real.gguf");
    std::filesystem::create_symlink("real.gguf", directory / "link.gguf");
    Writer writer;
    writer.start(directory / "link.gguf");
    writer.finish();
    CHECK(std::filesystem::is_symlink(directory / "link.gguf"));
    CHECK(File::open(directory / "real.gguf").metadata().empty());
}
