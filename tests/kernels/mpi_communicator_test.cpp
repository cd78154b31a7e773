// The contract of communicator.h between processes: mpirun starts build/mpi-ranks (tests/tools/mpi_ranks.cpp).
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/mpirun.h"

using runnel::testing::has_mpi;
using runnel::testing::Job;
using runnel::testing::mpirun;

namespace {

// The lines of the ranks, sorted, and what else there is to know of a job that went wrong.
std::string lines_of(const Job &job) {
    std::vector<std::string> lines;
    std::istringstream text(job.out);
    for (std::string line; std::getline(text, line);) lines.push_back(line + "\n");
    std::ranges::sort(lines);
    std::string all;
    for (const std::string &line : lines) all += line;
    if (job.code != 0) all += "mpirun: exit status " + std::to_string(job.code) + "\n" + job.err;
    return all;
}
std::string run(int ranks, const std::string &scenario) {
    return lines_of(mpirun(ranks, "build/mpi-ranks " + scenario));
}

// What a rank prints, and what `ranks` ranks print if the result of each is `result`.
std::string line(int rank, const std::string &result) {
    return "rank " + std::to_string(rank) + ": " + result + "\n";
}
std::string all(int ranks, const std::string &result) {
    std::string lines;
    for (int r = 0; r < ranks; ++r) lines += line(r, result);
    return lines;
}

}  // namespace

TEST_CASE("mpi communicator: ranks get the bytes that the others sent, whatever their sizes and speeds") {
    if (!has_mpi()) return;
    const uint32_t seed = std::random_device{}() % 1000000;
    CAPTURE(seed);
    for (const int ranks : {1, 2, 4}) {
        CHECK(run(ranks, "script " + std::to_string(seed)) == all(ranks, "right"));
    }
    CHECK(lines_of(mpirun(2, "build/mpi-ranks script " + std::to_string(seed), "self,tcp")) ==
          all(2, "right"));
    CHECK(run(3, "large") == all(3, "right"));
}

TEST_CASE("mpi communicator: a rank that fails fails all with the same message") {
    if (!has_mpi()) return;
    CHECK(run(3, "other") ==
          all(3, "rank 1 called broadcast of 5 bytes from rank 0, but rank 0 called barrier (operation 2)"));
    CHECK(run(3, "argument") == all(3, "rank 1: broadcast: there is no rank 99"));
    CHECK(run(3, "abort") == all(3, "rank 1: out of memory"));
    CHECK(run(3, "late") == all(3, "rank 1 did not reach operation 2 within 300 ms"));
    const std::string ended = "rank 1 ended before operation 2";
    CHECK(run(3, "end") == line(0, ended) + line(1, "right") + line(2, ended));
}

TEST_CASE("mpi communicator: the first rank is told for whom it has waited for long") {
    if (!has_mpi()) return;
    CHECK(run(3, "silent") == all(3, "right"));
}

TEST_CASE("mpi communicator: a rank that is stuck after another one has failed is ended with the job") {
    if (!has_mpi()) return;
    const Job job = mpirun(3, "build/mpi-ranks stuck");
    const std::string late = "rank 1 did not reach operation 2 within 300 ms";
    CHECK(lines_of(job).starts_with(line(0, late) + line(2, late) + "mpirun: "));
    CHECK((job.seconds < 10 || job.locked_up));
}

TEST_CASE("mpi communicator: a rank that dies ends the job within 10 seconds") {
    if (!has_mpi()) return;
    const Job job = mpirun(3, "build/mpi-ranks killed");
    CHECK(job.code != 0);
    CHECK((job.seconds < 10 || job.locked_up));
}
