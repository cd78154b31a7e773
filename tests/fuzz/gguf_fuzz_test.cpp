// Broken GGUF files: every one must open or be refused with one printable line. Files are parsed from memory
// blocks of their exact size, so that AddressSanitizer sees any read beyond the end.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "tests/support/damage.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/random.h"
#include "tests/support/temporary.h"

using namespace runnel::gguf;
using namespace runnel::testing;

namespace {

using Bytes = std::vector<std::byte>;

// A valid file of about a kilobyte with everything in it.
Bytes small_file() {
    GgufBytes bytes;
    bytes.header(5, 15);
    bytes.key("general.architecture", ValueType::String).put_string("llama");
    bytes.key("general.alignment", ValueType::U32, 32u);
    bytes.key("split.no", ValueType::U16, uint16_t{0}).key("split.count", ValueType::U16, uint16_t{1});
    bytes.key("u8", ValueType::U8, uint8_t{1}).key("i64", ValueType::I64, int64_t{-1});
    bytes.key("f32", ValueType::F32, 1.0f)
        .key("f64", ValueType::F64, 1.0)
        .key("bool", ValueType::Bool, uint8_t{1});
    bytes.key("tokens", ValueType::Array).array(ValueType::String, 4);
    for (const char *token : {"a", "bc", "", "def"}) bytes.put_string(token);
    bytes.key("scores", ValueType::Array).array(ValueType::F32, 3).put(1.0f).put(2.0f).put(3.0f);
    bytes.key("flags", ValueType::Array)
        .array(ValueType::Bool, 3)
        .put(uint8_t{0})
        .put(uint8_t{1})
        .put(uint8_t{0});
    bytes.key("nested", ValueType::Array).array(ValueType::Array, 2).array(ValueType::U16, 2).put(1u);
    bytes.array(ValueType::Array, 1).array(ValueType::String, 1).put_string("x");
    bytes.key("empty", ValueType::Array).array(ValueType::Array, 0);
    bytes.key("i16", ValueType::I16, int16_t{7});
    bytes.tensor("token_embd.weight", {32, 4}, 0, 0).tensor("blk.0.attn_q.weight", {32, 2}, 8, 512);
    bytes.tensor("a", {}, 24, 608).tensor("b", {3, 1, 2, 1}, 1, 640).tensor("c", {256}, 12, 672);
    bytes.data(672 + 144);
    return bytes.bytes();
}

// Reads all that a file offers.
size_t use(const File &file) {
    size_t sum = 0;
    for (const auto &[key, value] : file.metadata()) {
        sum += key.size() + value.as_ints().size() + value.as_floats().size() + value.as_strings().size();
        sum += value.as_int().has_value() + value.as_float().has_value() + value.as_bool().has_value();
        for (const Value &element : value.elements()) sum += element.size() + element.elements().size();
        CHECK(file.find(key) != nullptr);
    }
    for (const Tensor &tensor : file.tensors()) {
        sum += static_cast<size_t>(tensor.data[0]) + static_cast<size_t>(tensor.data[tensor.bytes - 1]);
        CHECK(file.find_tensor(tensor.name) == &tensor);
        CHECK(tensor.elements() > 0);
        CHECK(row_bytes(tensor.type, tensor.elements()) == tensor.bytes);
    }
    return sum;
}

void check_message(const std::string &message) {
    CAPTURE(message);
    CHECK(message.starts_with("broken"));
    CHECK(message.size() < 500);
    CHECK(message.size() >= 19);
    CHECK(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
}

// Returns whether the file could be opened.
bool survives(const Bytes &bytes) {
    const Bytes exact(bytes.begin(), bytes.end());  // no spare capacity after the end
    try {
        const File file = File::from_bytes(exact, "broken.gguf");
        use(file);
        return true;
    } catch (const FileError &error) {
        check_message(error.what());
        return false;
    }
}

// Largest resident size of this process so far, in bytes.
size_t peak_memory() {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

TEST_CASE("fuzz: a GGUF file cut off anywhere is refused") {
    const Bytes whole = small_file();
    CHECK(survives(whole));
    for (size_t size = 0; size < whole.size(); ++size) {
        CAPTURE(size);
        CHECK_FALSE(survives(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))));
    }
}

TEST_CASE("fuzz: 30,000 random corruptions of a GGUF file are read or refused") {
    const Bytes whole = small_file();
    [[maybe_unused]] const size_t before = peak_memory();
    int opened = 0;
    for (uint64_t seed = 0; seed < 30000; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Bytes bytes = whole;
        for (uint64_t count = 1 + random.below(3); count > 0; --count) mutate(bytes, random);
        opened += survives(bytes);
    }
    // Weight bytes and names may be anything, so some files open; but a reader that accepts all, or none, is
    // broken.
    CHECK(opened > 1000);
    CHECK(opened < 20000);
#ifndef __SANITIZE_ADDRESS__  // it keeps freed memory
    CHECK(peak_memory() - before < 64u << 20);
#endif
}

TEST_CASE("fuzz: awkward values in every 32-bit and 64-bit field of a GGUF file are read or refused") {
    const Bytes whole = small_file();
    const size_t header = 700;  // metadata and most of the tensor table
    for (size_t at = 4; at < header; ++at)
        for (uint64_t seed = 0; seed < 12; ++seed) {
            CAPTURE(at);
            CAPTURE(seed);
            Random random(at * 100 + seed);
            Bytes bytes = whole;
            const uint64_t value = awkward(random, bytes.size());
            std::memcpy(bytes.data() + at, &value, seed % 2 == 0 ? 8 : 4);
            survives(bytes);
        }
}

TEST_CASE("fuzz: random corruptions of a part of a split model are read or refused") {
    const TemporaryDirectory directory;
    const auto part = [](uint16_t number) {
        GgufBytes bytes;
        bytes.header(1, 3)
            .key("split.no", ValueType::U16, number)
            .key("split.count", ValueType::U16, uint16_t{2});
        bytes.key("split.tensors.count", ValueType::I32, 2);
        return bytes.tensor(number == 0 ? "t0" : "t1", {8}, 0, 0).data(32).bytes();
    };
    const auto first = directory / "broken-00001-of-00002.gguf",
               second = directory / "broken-00002-of-00002.gguf";
    write_file(first, part(0));
    write_file(second, part(1));
    CHECK(File::open(first).tensors().size() == 2);
    for (uint64_t seed = 0; seed < 1000; ++seed) {
        CAPTURE(seed);
        Random random(seed);
        Bytes bytes = part(1);
        mutate(bytes, random);
        write_file(second, bytes);
        try {
            use(File::open(seed % 2 == 0 ? first : second));
        } catch (const FileError &error) {
            const std::string message = error.what();
            CHECK(message.starts_with(directory.path().native()));
            check_message(message.substr(directory.path().native().size() + 1));
        }
    }
}
