#include "engine/convert/safetensors.h"

#include <doctest/doctest.h>

#include <functional>
#include <random>

#include "gguf/file.h"
#include "tests/support/hub_folder.h"

using namespace runnel;
using namespace runnel::convert;
using namespace runnel::testing;

namespace {

SafetensorsBytes example() {
    SafetensorsBytes file;
    file.add("a", {2, 3}, counted(6, 1));
    file.add("b", "U8", {4}, "wxyz");
    file.add("c", {}, {7});
    return file;
}

std::string error_of(const std::filesystem::path &folder) {
    try {
        Safetensors::open(folder);
    } catch (const gguf::FileError &error) {
        return error.what();
    }
    return "";
}

TEST_CASE("safetensors: tensors, shapes and bytes of one file") {
    const TemporaryDirectory folder;
    SafetensorsBytes file = example();
    file.header["__metadata__"] = {{"format", "pt"}};
    write_text(folder / "model.safetensors", file.bytes());
    const Safetensors all = Safetensors::open(folder.path());
    REQUIRE(all.tensors().size() == 3);
    CHECK(all.bytes() == 32);
    CHECK(all.find("missing") == nullptr);
    CHECK(all.find("a")->shape == std::vector<int64_t>{2, 3});
    CHECK(all.find("a")->dtype == "F32");
    float last = 0;
    std::memcpy(&last, all.find("a")->bytes.data() + 20, 4);
    CHECK(last == 1 + 5.0f / 64);
    CHECK(all.find("c")->elements() == 1);
}

TEST_CASE("safetensors: damaged files are refused in one line") {
    struct Damage {
        const char *expected;
        std::function<std::string(SafetensorsBytes &)> make;
    };
    const Damage damages[] = {
        {"too short", [](SafetensorsBytes &) { return std::string("abc"); }},
        {"a header of", [](SafetensorsBytes &) { return std::string(8, '\xff') + "{}"; }},
        {"a header of", [](SafetensorsBytes &f) { return f.bytes().substr(0, 20); }},
        {"line 1", [](SafetensorsBytes &f) { return f.with_header("{\"a\": "); }},
        {"is not a JSON object", [](SafetensorsBytes &f) { return f.with_header("[1]"); }},
        {"lacks a dtype",
         [](SafetensorsBytes &f) {
             f.header["a"].erase("dtype");
             return f.bytes();
         }},
        {"lacks a dtype",
         [](SafetensorsBytes &f) {
             f.header["a"]["data_offsets"] = {0};
             return f.bytes();
         }},
        {"is not supported",
         [](SafetensorsBytes &f) {
             f.header["a"]["dtype"] = "F4";
             return f.bytes();
         }},
        {"not a whole number",
         [](SafetensorsBytes &f) {
             f.header["a"]["shape"] = {-2, 3};
             return f.bytes();
         }},
        {"not a whole number",
         [](SafetensorsBytes &f) {
             f.header["a"]["shape"] = {2.5};
             return f.bytes();
         }},
        {"too large",
         [](SafetensorsBytes &f) {
             f.header["a"]["shape"] = {uint64_t{1} << 39, uint64_t{1} << 39};
             return f.bytes();
         }},
        {"more than 8",
         [](SafetensorsBytes &f) {
             f.header["a"]["shape"] = {1, 1, 1, 1, 1, 1, 1, 2, 3};
             return f.bytes();
         }},
        {"need 20",
         [](SafetensorsBytes &f) {
             f.header["a"]["shape"] = {5};
             return f.bytes();
         }},
        {"damaged or incomplete",
         [](SafetensorsBytes &f) {
             f.data.resize(30);
             return f.bytes();
         }},
        {"damaged or incomplete",
         [](SafetensorsBytes &f) {
             f.header["b"]["data_offsets"] = {28, 24};
             return f.bytes();
         }},
        {"overlap",
         [](SafetensorsBytes &f) {
             f.header["b"]["data_offsets"] = {20, 24};
             return f.bytes();
         }},
        {"leave a hole",
         [](SafetensorsBytes &f) {
             f.header.erase("b");
             return f.bytes();
         }},
        {"belong to no tensor",
         [](SafetensorsBytes &f) {
             f.data += "more";
             return f.bytes();
         }},
    };
    for (const Damage &damage : damages) {
        const TemporaryDirectory folder;
        SafetensorsBytes file = example();
        write_text(folder / "model.safetensors", damage.make(file));
        const std::string error = error_of(folder.path());
        CAPTURE(damage.expected);
        CAPTURE(error);
        CHECK(error.find(damage.expected) != std::string::npos);
        CHECK(error.find('\n') == std::string::npos);
    }
}

TEST_CASE("safetensors: random damage never reads outside of the file") {
    const std::string good = example().bytes();
    for (uint32_t seed = 0; seed < 2000; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        std::string bytes = good;
        for (uint32_t i = 0; i <= random() % 3; ++i)
            bytes[random() % bytes.size()] = static_cast<char>(random());
        if (random() % 4 == 0) bytes.resize(random() % bytes.size());
        const TemporaryDirectory folder;
        write_text(folder / "model.safetensors", bytes);
        try {
            unsigned sum = 0;
            const Safetensors all = Safetensors::open(folder.path());
            for (const auto &[name, tensor] : all.tensors())
                for (const std::byte byte : tensor.bytes) sum += std::to_integer<unsigned>(byte);
            CHECK(sum < 1u << 20);
        } catch (const gguf::FileError &) {
        }
    }
}

TEST_CASE("safetensors: an index must name exactly what its files hold") {
    const TemporaryDirectory folder;
    SafetensorsBytes one, two;
    one.add("a", {2}, {1, 2});
    two.add("b", {2}, {3, 4});
    two.add("c", {1}, {5});
    write_text(folder / "x-1.safetensors", one.bytes());
    write_text(folder / "x-2.safetensors", two.bytes());
    const auto open_with = [&](const nlohmann::json &map) {
        write_text(folder / "model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
        return error_of(folder.path());
    };
    CHECK(open_with({{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}, {"c", "x-2.safetensors"}}) == "");
    CHECK(Safetensors::open(folder.path()).tensors().size() == 3);
    CHECK(open_with({{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}}).find("does not list") !=
          std::string::npos);
    CHECK(open_with({{"a", "x-1.safetensors"}, {"d", "x-1.safetensors"}}).find("lacks the tensor 'd'") !=
          std::string::npos);
    CHECK(open_with({{"a", "x-3.safetensors"}}).find("is missing") != std::string::npos);
    CHECK(open_with({{"a", "../x-1.safetensors"}}).find("not a name in this folder") != std::string::npos);
    CHECK(open_with({{"a", 5}}).find("not a name in this folder") != std::string::npos);
    write_text(folder / "x-3.safetensors", one.bytes());
    CHECK(open_with({{"a", "x-1.safetensors"}, {"b", "x-2.safetensors"}, {"c", "x-3.safetensors"}}) != "");
}

TEST_CASE("safetensors: a folder without weights is told what is missing") {
    const TemporaryDirectory folder;
    CHECK(error_of(folder.path()).find("no model.safetensors") != std::string::npos);
    write_text(folder / "pytorch_model.bin", "x");
    CHECK(error_of(folder.path()).find("pytorch_model.bin") != std::string::npos);
    CHECK(error_of(folder / "pytorch_model.bin").find("is not a folder") != std::string::npos);
}

}  // namespace
