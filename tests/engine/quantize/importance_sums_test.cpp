// Sums of squared activations: accumulated, merged, written and read.
#include "engine/quantize/importance_sums.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/quantize/importance.h"
#include "engine/quantize/mix.h"
#include "tests/support/temporary.h"

using namespace runnel;
using namespace runnel::quantize;
using namespace runnel::testing;

namespace {

ImportanceSums sample() {
    ImportanceSums sums;
    sums.add("blk.0.a.weight", 0, 1, std::vector<float>{1, 2, 3});
    sums.add("blk.0.a.weight", 0, 1, std::vector<float>{-1, 0, 1});
    sums.add("blk.0.experts.weight", 2, 3, std::vector<float>{4, 5});
    sums.datasets = {"text"};
    sums.chunks = 2, sums.chunk_size = 16;
    return sums;
}

}  // namespace

TEST_CASE("imatrix: a file holds the sums; quantize reads mean squares, and ones for experts without rows") {
    const TemporaryDirectory directory;
    sample().save(directory / "a", false);
    const ImportanceSums sums = ImportanceSums::load(directory / "a");
    CHECK(sums.entries.at("blk.0.a.weight").sums == std::vector<double>{2, 4, 10});
    CHECK(sums.entries.at("blk.0.experts.weight").counts == std::vector<int64_t>{0, 0, 1});
    CHECK(sums.datasets == std::vector<std::string>{"text"});
    CHECK(sums.chunks == 2);
    const Importance read = Importance::load(directory / "a");
    const auto a = read.find("blk.0.a.weight"), e = read.find("blk.0.experts.weight");
    CHECK(std::vector<float>(a.begin(), a.end()) == std::vector<float>{1, 2, 5});
    CHECK(std::vector<float>(e.begin(), e.end()) == std::vector<float>{1, 1, 1, 1, 16, 25});
    CHECK(read.chunks() == 2);
    CHECK(read.dataset() == "text");
}

TEST_CASE("imatrix: files of one model merge in any order; those of different models are refused") {
    ImportanceSums all = sample(), other = sample();
    other.entries.erase("blk.0.a.weight");
    other.add("blk.0.b.weight", 0, 1, std::vector<float>{7});
    other.datasets = {"more"};
    ImportanceSums reversed = other;
    all.merge(other);
    reversed.merge(sample());
    CHECK(all.entries.at("blk.0.experts.weight").sums == std::vector<double>{0, 0, 0, 0, 32, 50});
    CHECK(all.entries.at("blk.0.experts.weight").counts == std::vector<int64_t>{0, 0, 2});
    CHECK(all.entries.at("blk.0.b.weight").sums == std::vector<double>{49});
    CHECK(all.chunks == 4);
    CHECK(all.datasets == std::vector<std::string>{"text", "more"});
    for (const auto &[name, entry] : all.entries) CHECK(reversed.entries.at(name).sums == entry.sums);
    ImportanceSums wrong;
    wrong.add("blk.0.a.weight", 0, 1, std::vector<float>{1, 2});
    CHECK_THROWS_AS(all.merge(wrong), QuantizeError);
    // An entry with one count for all heads, as llama-imatrix writes it, merges with a count for each.
    ImportanceSums heads, flat;
    heads.add("h", 1, 2, std::vector<float>{1, 2});
    flat.add("h", 0, 1, std::vector<float>{1, 1, 1, 1});
    heads.merge(flat);
    CHECK(heads.entries.at("h").sums == std::vector<double>{1, 1, 2, 5});
    CHECK(heads.entries.at("h").counts == std::vector<int64_t>{1, 2});
}

TEST_CASE("imatrix: sums that are not finite are not written") {
    const TemporaryDirectory directory;
    ImportanceSums sums = sample();
    sums.add("blk.0.a.weight", 0, 1, std::vector<float>{0, std::numeric_limits<float>::infinity(), 0});
    CHECK_THROWS_AS(sums.save(directory / "a", false), QuantizeError);
    CHECK_FALSE(std::filesystem::exists(directory / "a"));
}

TEST_CASE("imatrix: statistics of a tensor") {
    ImportanceSums::Entry entry{4, {2, 2, 2, 2, 0, 0, 0, 0}, {2, 0}};
    ImportanceStatistics even = statistics_of(entry);
    CHECK(even.met == 1);
    CHECK(even.matrices == 2);
    CHECK(even.mean == doctest::Approx(1));
    CHECK(even.deviation == doctest::Approx(0));
    CHECK(even.entropy == doctest::Approx(2));  // log2(4)
    CHECK(even.active == doctest::Approx(1));
    entry = {4, {9, 1, 1, 1}, {1}};
    const ImportanceStatistics uneven = statistics_of(entry);
    CHECK(uneven.largest == 9);
    CHECK(uneven.outliers == doctest::Approx(0.25));
    CHECK(uneven.deviation == doctest::Approx(std::sqrt(12.0)));
    CHECK(uneven.entropy < 2);
}
