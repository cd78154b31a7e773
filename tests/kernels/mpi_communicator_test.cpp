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

using Lines = std::vector<std::string>;

// The lines of the ranks, sorted.
Lines lines_of(const Job &job) {
    Lines lines;
    std::istringstream text(job.out);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    std::ranges::sort(lines);
    return lines;
}
Lines run(int ranks, const std::string &scenario) {
    return lines_of(mpirun(ranks, "build/mpi-ranks " + scenario));
}

// What `ranks` ranks print if the result of each is `result`.
Lines all(int ranks, const std::string &result) {
    Lines lines;
    for (int r = 0; r < ranks; ++r) lines.push_back("rank " + std::to_string(r) + ": " + result);
    return lines;
}

}  // namespace

TEST_CASE("mpi communicator: ranks get the bytes that the others sent, whatever their sizes and speeds") {
    if (!has_mpi()) return;
    const uint32_t seed = std::random_device{}() % 1000000;
    CAPTURE(seed);
    for (const int ranks : {1, 2, 4}) {
        const Job job = mpirun(ranks, "build/mpi-ranks script " + std::to_string(seed));
        CHECK(lines_of(job) == all(ranks, "right"));
        CHECK(job.code == 0);
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
    Lines ended = all(3, "rank 1 ended before operation 2");
    ended[1] = "rank 1: right";
    CHECK(run(3, "end") == ended);
}

TEST_CASE("mpi communicator: a rank that dies ends the job within 10 seconds") {
    if (!has_mpi()) return;
    const Job job = mpirun(3, "build/mpi-ranks killed");
    CHECK(job.code != 0);
    CHECK((job.seconds < 10 || job.locked_up));
}
