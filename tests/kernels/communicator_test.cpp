// The contract of communicator.h, for communicators of one process.
#include "kernels/communicator.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>

#include "tests/support/communicator_script.h"

using namespace runnel::kernels;
using runnel::testing::CommunicatorScript;
using namespace std::chrono_literals;

namespace {

using Ranks = std::vector<std::unique_ptr<Communicator>>;
using Bytes = std::vector<std::byte>;

// What f(communicator) throws on each rank, with a thread for each; empty: nothing.
std::vector<std::string> errors(const Ranks &ranks, const std::function<void(Communicator &)> &f) {
    std::vector<std::string> texts(ranks.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks.size(); ++r)
        threads.emplace_back([&, r] {
            try {
                f(*ranks[r]);
            } catch (const BackendError &error) {
                texts[r] = error.kind == BackendError::Kind::Failed ? error.what() : "error of another kind";
            }
        });
    for (std::thread &thread : threads) thread.join();
    return texts;
}

void check_all(const std::vector<std::string> &found, const std::string &expected) {
    for (const std::string &text : found) CHECK(text == expected);
}

}  // namespace

TEST_CASE("communicator: ranks get the bytes that the others sent, whatever their sizes and speeds") {
    const uint32_t seed = std::random_device{}();
    CAPTURE(seed);
    for (const int size : {1, 2, 3, 4, 7}) {
        CAPTURE(size);
        const Ranks ranks = make_local_communicators(size, 60s);
        std::atomic<int> right = 0;
        check_all(
            errors(ranks, [&](Communicator &rank) { right += CommunicatorScript(rank, seed).run(2000); }),
            "");
        CHECK(right == size);
    }
}

TEST_CASE("communicator: a rank that calls other operations than the rest fails all and is named") {
    struct Case {
        std::function<void(Communicator &)> wrong, usual;
        std::string message;
    };
    Bytes five(5), six(6), zero;
    const std::vector<size_t> sizes{0, 0, 5}, other_sizes{0, 5, 0};
    const Case cases[] = {
        {[&](Communicator &rank) { rank.barrier(); },
         [](Communicator &rank) {
             Bytes bytes(5);
             rank.broadcast(bytes, 2);
         },
         "rank 1 called barrier, but rank 0 called broadcast of 5 bytes from rank 2 (operation 3)"},
        {[&](Communicator &rank) { rank.broadcast(five, 0); },
         [](Communicator &rank) {
             Bytes bytes(5);
             rank.broadcast(bytes, 2);
         },
         "rank 1 called broadcast of 5 bytes from rank 0, but rank 0 called broadcast of 5 bytes from rank 2 "
         "(operation 3)"},
        {[&](Communicator &rank) { rank.broadcast(six, 2); },
         [](Communicator &rank) {
             Bytes bytes(5);
             rank.broadcast(bytes, 2);
         },
         "rank 1 called broadcast of 6 bytes from rank 2, but rank 0 called broadcast of 5 bytes from rank 2 "
         "(operation 3)"},
        {[&](Communicator &rank) { rank.all_gather(five, other_sizes, five); },
         [&](Communicator &rank) {
             Bytes bytes(5);
             rank.all_gather(std::span(bytes).first(rank.rank() == 2 ? 5 : 0), sizes, bytes);
         },
         "rank 1 called all_gather of 0 + 5 + 0 bytes, but rank 0 called all_gather of 0 + 0 + 5 bytes "
         "(operation 3)"},
        {[&](Communicator &rank) { rank.exchange({}, {}); }, [](Communicator &rank) { rank.barrier(); },
         "rank 1 called exchange, but rank 0 called barrier (operation 3)"},
        {[&](Communicator &rank) {
             rank.exchange(std::vector<Communicator::Send>{{0, five}}, {});
         },
         [](Communicator &rank) { rank.exchange({}, {}); },
         "rank 1 sends 1 messages to rank 0, which expects 0 (operation 3)"},
        {[&](Communicator &rank) {
             rank.exchange({}, std::vector<Communicator::Receive>{{2, five}});
         },
         [](Communicator &rank) {
             const Bytes bytes(6);
             rank.exchange(std::vector<Communicator::Send>(rank.rank() == 2, {1, bytes}), {});
         },
         "rank 2 sends 6 bytes to rank 1, which expects 5 (operation 3)"},
        {[&](Communicator &rank) { rank.broadcast(five, 3); }, [](Communicator &rank) { rank.barrier(); },
         "rank 1: broadcast: there is no rank 3"},
        {[&](Communicator &rank) {
             rank.exchange(std::vector<Communicator::Send>{{-1, five}}, {});
         },
         [](Communicator &rank) { rank.barrier(); }, "rank 1: exchange: there is no rank -1"},
        {[&](Communicator &rank) { rank.all_gather(zero, other_sizes, five); },
         [](Communicator &rank) { rank.barrier(); },
         "rank 1: all_gather: buffers of 0 and 5 bytes, expected 5 and 5"},
        {[&](Communicator &rank) { rank.all_gather(zero, std::span(sizes).first(2), five); },
         [](Communicator &rank) { rank.barrier(); }, "rank 1: all_gather: 2 sizes for 3 ranks"},
    };
    for (const Case &c : cases) {
        CAPTURE(c.message);
        const Ranks ranks = make_local_communicators(3, 60s);
        const auto start = std::chrono::steady_clock::now();
        check_all(errors(ranks,
                         [&](Communicator &rank) {
                             for (int i = 0; i < 2; ++i) rank.barrier();
                             (rank.rank() == 1 ? c.wrong : c.usual)(rank);
                         }),
                  c.message);
        CHECK(std::chrono::steady_clock::now() - start < 30s);  // at once, not after the deadline
        check_all(errors(ranks, [](Communicator &rank) { rank.barrier(); }), c.message);  // and for ever
    }
}

TEST_CASE("communicator: a rank that does not come fails all after the deadline") {
    const Ranks ranks = make_local_communicators(3, 50ms);
    std::vector<std::string> found = errors(ranks, [](Communicator &rank) {
        rank.barrier();
        if (rank.rank() != 1) rank.barrier();
    });
    const std::string expected = "rank 1 did not reach operation 2 within 50 ms";
    CHECK(found == std::vector<std::string>{expected, "", expected});
    check_all(errors(ranks, [](Communicator &rank) { rank.barrier(); }), expected);
}

TEST_CASE("communicator: abort from another thread fails all ranks with the first reason") {
    const Ranks ranks = make_local_communicators(4, 60s);
    std::thread other([&] {
        std::this_thread::sleep_for(20ms);
        ranks[2]->abort("out of memory");
        ranks[0]->abort("came later");
    });
    check_all(errors(ranks,
                     [](Communicator &rank) {
                         for (;;) CommunicatorScript(rank, 1).run(1);
                     }),
              "rank 2: out of memory");
    other.join();
    check_all(errors(ranks, [](Communicator &rank) { rank.barrier(); }), "rank 2: out of memory");
}

TEST_CASE("communicator: a rank that ends fails those that still need it, and no others") {
    Ranks ranks = make_local_communicators(3, 60s);
    check_all(errors(ranks, [](Communicator &rank) { rank.barrier(); }), "");
    const std::string expected = "rank 1 ended before operation 2";
    SUBCASE("before the others call") {
        ranks[1].reset();
        ranks.erase(ranks.begin() + 1);
        check_all(errors(ranks, [](Communicator &rank) { rank.barrier(); }), expected);
    }
    SUBCASE("while they wait") {
        std::unique_ptr<Communicator> ending = std::move(ranks[1]);
        ranks.erase(ranks.begin() + 1);
        std::thread other([&] {
            std::this_thread::sleep_for(20ms);
            ending.reset();
        });
        check_all(errors(ranks, [](Communicator &rank) { rank.barrier(); }), expected);
        other.join();
    }
    SUBCASE("each when it has finished") {
        const std::vector<std::string> found = errors(ranks, [&](Communicator &rank) {
            const auto own = static_cast<size_t>(rank.rank());
            CHECK(CommunicatorScript(rank, 3).run(20));
            ranks[own].reset();
        });
        check_all(found, "");
    }
}
