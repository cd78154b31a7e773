// `runnel doctor` on files: damaged files, unfinished downloads, and files that no program can run.
#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "engine/commands/doctor/doctor_file.h"
#include "engine/commands/doctor/doctor_report.h"
#include "tests/engine/commands/doctor/doctor_support.h"
#include "tests/support/model_maker.h"
#include "tests/support/process.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::commands;
using nlohmann::json;
using testing::about;
using testing::call_doctor;
using testing::ModelShape;
using testing::shape_of;
using testing::TemporaryModel;
using Area = Finding::Area;
using Verdict = Finding::Verdict;

namespace {

// A model with a matrix of some size.
struct LargeTensorModel {
    LargeTensorModel(const char *type, int width, int ff)
        : model([&] {
              ModelShape shape = shape_of("llama", type);
              shape.width = width, shape.ff = ff;
              return shape;
          }()),
          bytes(testing::read_bytes(model.path)),
          tensor(*model.file.find_tensor("blk.0.ffn_up.weight")) {}
    TemporaryModel model;
    std::vector<std::byte> bytes;  // of its file
    const gguf::Tensor &tensor;
};

}  // namespace

TEST_CASE("doctor: a file that no program can run is at fault") {
    const TemporaryModel tiny(shape_of("llama", "Q8_0"));
    json report;
    // Replaces every occurrence of a word in the file by another word of the same length.
    const auto renamed = [&](std::string_view from, std::string_view to) {
        std::vector<std::byte> bytes = testing::read_bytes(tiny.path);
        auto *const begin = reinterpret_cast<char *>(bytes.data()), *const end = begin + bytes.size();
        for (auto *at = begin; (at = std::search(at, end, from.begin(), from.end())) != end; ++at)
            std::copy(to.begin(), to.end(), at);
        const std::filesystem::path path = tiny.directory / "renamed.gguf";
        testing::write_file(path, bytes);
        return call_doctor(path, "cpu", report);
    };
    CHECK(renamed("blk.0.attn_v.weight", "blk.0.attn_z.weight") == exit_code::kModelFile);
    CHECK(report["fault"] == "file");
    CHECK(report["conclusion"].get<std::string>().find("blk.0.attn_v.weight") != std::string::npos);
    CHECK(report["checks"].size() > 10);  // the devices are checked nevertheless
    CHECK(renamed("llama", "lhama") == exit_code::kModelFile);
    CHECK(report["fault"] == "file");
    CHECK(report["conclusion"].get<std::string>().find("newer version") != std::string::npos);
}

TEST_CASE("doctor: every kind of damage to a file is found") {
    const LargeTensorModel large("Q8_0", 512, 1024);
    const TemporaryModel &tiny = large.model;
    const std::vector<std::byte> &bytes = large.bytes;
    const gguf::Tensor &tensor = large.tensor;
    const auto damaged = [&](const char *name, auto change) {
        std::vector<std::byte> copy = bytes;
        change(copy);
        const std::filesystem::path path = tiny.directory / name;
        testing::write_file(path, copy);
        return path;
    };
    const auto garbage = damaged("garbage.gguf", [&](std::vector<std::byte> &b) {
        std::mt19937 random(5);
        for (size_t i = 0; i < 8192; ++i) b[tensor.offset + 4096 + i] = static_cast<std::byte>(random());
    });
    json report;
    CHECK(call_doctor(garbage, "cpu", report) == exit_code::kModelFile);
    CHECK(report["fault"] == "file");
    CHECK(report["checks"][0]["subject"] == "blk.0.ffn_up.weight");
    CHECK(report["checks"][0]["not_finite"].get<int>() > 1);
    CHECK(report["checks"][0]["first_byte"].get<uint64_t>() >= tensor.offset);

    const auto cut = damaged("cut.gguf", [&](std::vector<std::byte> &b) { b.resize(b.size() - 5000); });
    CHECK(call_doctor(cut, "cpu", report) == exit_code::kModelFile);
    CHECK(report["checks"][0]["detail"].get<std::string>().find("truncated or damaged") != std::string::npos);
    CHECK(report["checks"].size() > 10);  // the devices are checked nevertheless
}

TEST_CASE("doctor: pages of zeros: some are noted, a download that was never finished is damage") {
    const LargeTensorModel large("F16", 512, 2048);
    REQUIRE(large.tensor.bytes >= 1 << 20);
    const auto with_zeros = [&](uint64_t from, uint64_t count) {
        std::vector<std::byte> bytes = large.bytes;
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(from), count, std::byte{0});
        uint64_t shown = 0;
        const std::vector<Finding> findings =
            check_file(gguf::File::from_bytes(bytes, "zeros"), 3,
                       [&](uint64_t done, uint64_t all) { shown += done > 0 && done <= all; });
        CHECK(shown > 0);
        return findings;
    };
    const std::vector<Finding> some = with_zeros(large.tensor.offset, 400 << 10);
    REQUIRE(some.size() == 2);
    CHECK(some[0].verdict == Verdict::Note);
    CHECK(some[0].subject == "blk.0.ffn_up.weight");
    CHECK(conclude(some).fault == "none");
    CHECK(conclude(some).text.find("blk.0.ffn_up.weight") != std::string::npos);
    CHECK(conclude(some).text.find("is right") == std::string::npos);
    // The file from its middle on, and a part of its last tensor.
    const std::vector<Finding> half = with_zeros(large.bytes.size() / 2, large.bytes.size() / 2);
    CHECK(conclude(half).fault == "file");
    CHECK(conclude(half).exit_code == exit_code::kModelFile);
    CHECK(conclude(half).text.find("all tensors") == std::string::npos);
    CHECK(about(half, "all tensors").verdict == Verdict::Wrong);
    const auto last = std::ranges::max_element(large.model.file.tensors(), {}, &gguf::Tensor::offset);
    CAPTURE(last->name);
    if (last->bytes >= 1 << 18)
        CHECK(conclude(with_zeros(last->offset + last->bytes / 4 * 3, last->bytes / 4)).fault == "file");
    // A vector may consist of zeros.
    const gguf::Tensor &norm = *large.model.file.find_tensor("output_norm.weight");
    CHECK(with_zeros(norm.offset, norm.bytes).size() == 1);
}

TEST_CASE("doctor: notes on other tensors do not hide damage") {
    ModelShape shape = shape_of("llama", "F16");
    shape.layers = 5, shape.width = 256, shape.ff = 2048;
    const TemporaryModel tiny(shape);
    std::vector<std::byte> bytes = testing::read_bytes(tiny.path);
    const auto &tensors = tiny.file.tensors();
    for (const gguf::Tensor &tensor : tensors)  // a quarter is noted, in tensors that are large enough
        if (tensor.rank == 2 && &tensor != &tensors.back())
            std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(tensor.offset), tensor.bytes * 4 / 5,
                        std::byte{0});
    const uint16_t nan = 0x7e00;
    const gguf::Tensor &last = tensors.back();
    REQUIRE(last.rank == 2);
    std::memcpy(bytes.data() + last.offset, &nan, 2);
    const std::vector<Finding> findings = check_file(gguf::File::from_bytes(bytes, "damaged"), 2);
    CHECK(findings.size() == 21);
    CHECK(conclude(findings).fault == "file");
    CHECK(findings.back().verdict == Verdict::Wrong);
    CHECK(findings.back().numbers["damaged"].get<size_t>() > 20);
}
