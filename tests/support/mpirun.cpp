#include "tests/support/mpirun.h"

#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/support/skip.h"
#include "tests/support/temporary.h"

namespace runnel::testing {

bool has_mpi() {
    // (Each alone: `command -v A B` of some shells is content with A.)
    const bool has = std::system("command -v mpirun >/dev/null && command -v mpicxx >/dev/null") == 0;
    if (!has) skip("there is no Open MPI (scripts/setup --mpi)");
    return has;
}

Job mpirun(int ranks, const std::string &command, std::string_view transport) {
    const TemporaryDirectory folder;
    const std::string errors = (folder.path() / "errors").string();
    const std::string whole =
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RUNNEL_CONFIG= timeout -k 1 60 mpirun "
        "-n " +
        std::to_string(ranks) + " --oversubscribe --bind-to none --mca pml ob1 --mca btl " +
        std::string(transport) + " --mca btl_tcp_if_include lo " + command + " 2>'" + errors + "' </dev/null";
    const auto start = std::chrono::steady_clock::now();
    FILE *out = popen(whole.c_str(), "r");
    if (!out) throw std::runtime_error("popen");
    Job job;
    char piece[4096];
    while (const size_t count = fread(piece, 1, sizeof piece, out)) job.out.append(piece, count);
    const int status = pclose(out);
    job.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    job.locked_up = job.code == 137;  // by SIGKILL
    job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::ifstream file(errors);
    job.err.assign(std::istreambuf_iterator<char>(file), {});
    return job;
}

}  // namespace runnel::testing
