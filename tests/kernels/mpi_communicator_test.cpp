// The contract of communicator.h between processes: mpirun starts build/mpi-ranks (tests/tools/mpi_ranks.cpp), on this
// machine alone and through shared memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/skip.h"

using runnel::testing::skip;

namespace {

struct Job {
    int status = -1;
    double seconds = 0;
    std::vector<std::string> lines;  // what the ranks printed, sorted by rank
};

// Whether this machine has mpirun, and `make test` has built the ranks.
bool available() {
    if (std::system("command -v mpirun mpicxx >/dev/null 2>&1") != 0) {
        skip("there is no Open MPI");
        return false;
    }
    REQUIRE(std::filesystem::exists("build/mpi-ranks"));
    return true;
}

// (--oversubscribe: more ranks than processors. Messages of mpirun itself are dropped.)
Job run(int ranks, const std::string &arguments, const std::string &transport = "self,vader") {
    const std::string command =
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 100 mpirun -n " +
        std::to_string(ranks) + " --oversubscribe --bind-to none --mca pml ob1 --mca btl " + transport +
        " --mca btl_tcp_if_include lo build/mpi-ranks " + arguments + " 2>/dev/null </dev/null";
    const auto start = std::chrono::steady_clock::now();
    FILE *out = popen(command.c_str(), "r");
    REQUIRE(out);
    std::string text;
    char piece[4096];
    while (const size_t count = fread(piece, 1, sizeof piece, out)) text.append(piece, count);
    Job job;
    job.status = pclose(out);
    job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with("rank ")) job.lines.push_back(line);
    std::ranges::sort(job.lines);
    return job;
}

// What `ranks` ranks print if the result of each is `result`.
std::vector<std::string> all(int ranks, const std::string &result) {
    std::vector<std::string> lines;
    for (int r = 0; r < ranks; ++r) lines.push_back("rank " + std::to_string(r) + ": " + result);
    return lines;
}

}  // namespace

TEST_CASE("mpi communicator: ranks get the bytes that the others sent, whatever their sizes and speeds") {
    if (!available()) return;
    const uint32_t seed = std::random_device{}() % 1000000;
    CAPTURE(seed);
    for (const int ranks : {1, 2, 4}) {
        const Job job = run(ranks, "script " + std::to_string(seed));
        CHECK(job.lines == all(ranks, "right"));
        CHECK(job.status == 0);
    }
    CHECK(run(2, "script " + std::to_string(seed), "self,tcp").lines == all(2, "right"));
    CHECK(run(3, "large").lines == all(3, "right"));
}

TEST_CASE("mpi communicator: a rank that fails fails all with the same message") {
    if (!available()) return;
    CHECK(run(3, "other").lines ==
          all(3, "rank 1 called broadcast of 5 bytes from rank 0, but rank 0 called barrier (operation 2)"));
    CHECK(run(3, "argument").lines == all(3, "rank 1: broadcast: there is no rank 99"));
    CHECK(run(3, "abort").lines == all(3, "rank 1: out of memory"));
    CHECK(run(3, "late").lines == all(3, "rank 1 did not reach operation 2 within 300 ms"));
    std::vector<std::string> ended = all(3, "rank 1 ended before operation 2");
    ended[1] = "rank 1: right";
    CHECK(run(3, "end").lines == ended);
}

TEST_CASE("mpi communicator: a rank that dies ends the job within 10 seconds") {
    if (!available()) return;
    const Job job = run(3, "killed");
    CHECK(job.status != 0);
    CHECK(job.seconds < 10);
}
