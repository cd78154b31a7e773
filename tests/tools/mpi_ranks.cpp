// One rank of the tests of the MPI communicator, started by mpirun (tests/kernels/mpi_communicator_test.cpp).
//   mpi-ranks SCENARIO [SEED]
// Prints one line, "rank R: RESULT", where RESULT is "right", "wrong" or the error.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/mpi/mpi_communicator.h"
#include "tests/support/communicator_script.h"

using namespace runnel;
using namespace std::chrono_literals;

namespace {

using Bytes = std::vector<std::byte>;

// Operations of more bytes than MPI sends eagerly: every message is received while others are still sent.
bool large(kernels::Communicator &rank) {
    const size_t piece = size_t{5} << 20;
    const std::vector<size_t> sizes(static_cast<size_t>(rank.size()), piece);
    Bytes all(piece * sizes.size());
    const Bytes mine(piece, static_cast<std::byte>(rank.rank() + 1));
    for (int i = 0; i < 5; ++i) rank.all_gather(mine, sizes, all);
    for (size_t r = 0; r < sizes.size(); ++r)
        for (size_t at = 0; at < piece; at += 4096)
            if (all[r * piece + at] != static_cast<std::byte>(r + 1)) return false;
    return true;
}

// Returns false if received bytes, or what rank 0 is told of silent ranks, are wrong. Rank 1 is the one that errs.
bool run(const std::string &scenario, kernels::MpiSession &session, uint32_t seed) {
    std::vector<std::pair<int, std::chrono::seconds>> silences;
    const auto communicator = session.communicator(
        scenario == "late" || scenario == "stuck" ? 300ms : 60000ms,
        [&](int process, std::chrono::seconds waited) { silences.emplace_back(process, waited); }, 1s);
    kernels::Communicator &rank = *communicator;
    const bool errs = rank.rank() == 1;
    if (scenario == "script") return testing::CommunicatorScript(rank, seed).run(2000);
    if (scenario == "large") return large(rank);
    rank.barrier();
    if (scenario == "other" && errs) {
        Bytes five(5);
        rank.broadcast(five, 0);
    }
    if (scenario == "argument" && errs) {
        Bytes five(5);
        rank.broadcast(five, 99);
    }
    if (scenario == "silent") {
        if (errs) std::this_thread::sleep_for(2500ms);
        rank.barrier();
        const auto told = [&](std::chrono::seconds waited) {
            return std::ranges::count(silences, std::pair(1, waited)) == 1;
        };
        return rank.rank() == 0 ? told(1s) && told(2s) : silences.empty();
    }
    if (scenario == "late" && errs) std::this_thread::sleep_for(900ms);
    if (scenario == "stuck" && errs) std::this_thread::sleep_for(30s);
    if (scenario == "killed" && errs) std::abort();
    if (scenario == "end" && errs) return true;
    std::thread other;
    if (scenario == "abort" && errs) other = std::thread([&] { rank.abort("out of memory"); });
    if (other.joinable()) other.join();
    for (int i = 0; i < 3; ++i) rank.barrier();
    return true;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *number = std::getenv("OMPI_COMM_WORLD_RANK");
    std::string result;
    kernels::MpiSession session;
    try {
        const uint32_t seed = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 1;
        result = run(argv[1], session, seed) ? "right" : "wrong";
    } catch (const kernels::BackendError &error) {
        result = error.what();
    }
    std::printf("rank %s: %s\n", number ? number : "?", result.c_str());
    std::fflush(stdout);
}
