#include "kernels/mpi/mpi_communicator.h"

#define OMPI_SKIP_MPICXX  // the C++ interface, which MPI has given up
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "kernels/collective.h"
#include "kernels/wire.h"

namespace runnel::kernels {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

// Tags: the call of an operation; why a rank has failed; how many operations a rank had called when it ended.
enum Tag { kCall, kFailure, kEnd };

// Messages of MPI have at most INT_MAX bytes, so larger ones go in pieces.
constexpr size_t kPiece = size_t{1} << 30;

// A rank that has looked so often in vain sleeps between looks: about 10 ms.
constexpr int kBusyLooks = 20000;

// How long a job that has failed waits for ranks that do not end; each rank longer than the one before it, so that one
// aborts the job (Open MPI's mpirun can crash or lock up when several do).
constexpr std::chrono::milliseconds kFailedEnd{3000}, kBetweenRanks{500};

void pause(int looks) {
    if (looks > kBusyLooks)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    else if (looks > 100)
        std::this_thread::yield();
}

void check(int code, const char *what) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw BackendError(BackendError::Kind::Failed,
                       std::string(what) + ": " + std::string(text, static_cast<size_t>(length)));
}

// The call as rank `to` sees it.
void pack(const Call &call, int to, WireWriter &into) {
    into.clear();
    into.put(call.kind), into.put(call.root);
    into.list<size_t>(call.sizes);
    into.list<Call::Message>(call.sends), into.list<Call::Message>(call.receives);
    into.list<std::byte>(call.to_all);
    into.list<std::byte>(call.to_rank[static_cast<size_t>(to)]);
}

// The call of another rank, as rank `me` sees it, of `size` ranks.
void unpack(std::span<const std::byte> from, int me, int size, Call &call) {
    WireReader reader(from);
    call.reset(size);
    call.kind = reader.get<Call::Kind>();
    call.root = reader.get<int>();
    reader.list(call.sizes);
    reader.list(call.sends), reader.list(call.receives);
    reader.list(call.to_all);
    reader.list(call.to_rank[static_cast<size_t>(me)]);
}

class MpiCommunicator final : public MeetingCommunicator {
  public:
    MpiCommunicator(MPI_Comm comm, std::chrono::milliseconds deadline, OnSilence on_silence,
                    std::chrono::seconds patience, bool &failed)
        : comm_(comm),
          deadline_(deadline),
          on_silence_(std::move(on_silence)),
          patience_(patience),
          job_failed_(failed) {
        MPI_Comm_rank(comm_, &rank_);
        MPI_Comm_size(comm_, &size_);
        const auto ranks = static_cast<size_t>(size_);
        calls_.resize(ranks);
        outgoing_.resize(ranks);
        incoming_.resize(ranks);
        ended_.resize(ranks);
    }
    ~MpiCommunicator() override {
        leave();
        // After a failure, MPI may still read and write these, for as long as the process lives. (The MPI_Comm stays as
        // well: MPI_Comm_free() would wait for the other ranks.)
        if (failure_) new std::pair(std::move(outgoing_), std::move(incoming_));
    }

    int rank() const override { return rank_; }
    int size() const override { return size_; }

    void abort(const std::string &why) noexcept override {
        const std::lock_guard lock(mutex_);
        if (abort_) return;
        try {
            abort_ = rank_name(rank_) + ": " + why;
        } catch (const std::exception &) {  // out of memory
            abort_.emplace();
        }
        aborted_ = true;
    }

  private:
    struct Incoming {
        Bytes bytes;
        size_t pieces = 0;  // received
        MPI_Request request = MPI_REQUEST_NULL;
        bool done = false;
    };

    Call &next_call() override {
        look_for_failures();
        Call &call = calls_[static_cast<size_t>(rank_)];
        call.reset(size_);
        return call;
    }

    std::vector<const Call *> meet() override {
        const uint64_t operation = called_++;
        send_call();
        for (Incoming &from : incoming_) from = {std::move(from.bytes), 0, MPI_REQUEST_NULL, false};
        const auto start = Clock::now();
        std::chrono::seconds patience = patience_;
        for (int looks = 0; !progress(); ++looks) {
            look_for_failures();
            look_for_ends(operation);
            const auto waited = Clock::now() - start;
            const std::optional<int> late = missing();
            if (waited > deadline_)
                fail((late ? rank_name(*late) : "a rank") + " did not reach " + name(operation) + " within " +
                     std::to_string(deadline_.count()) + " ms");
            if (rank_ == 0 && on_silence_ && late && waited > patience) {
                on_silence_(*late, patience);
                patience *= 2;
            }
            pause(looks);
        }
        std::vector<const Call *> all;
        for (int r = 0; r < size_; ++r) {
            Call &call = calls_[static_cast<size_t>(r)];
            if (r != rank_) unpack(incoming_[static_cast<size_t>(r)].bytes, rank_, size_, call);
            all.push_back(&call);
        }
        if (const std::string differs = disagreement(all); !differs.empty())
            fail(differs + " (" + name(operation) + ")");
        return all;
    }

    static std::string name(uint64_t operation) { return "operation " + std::to_string(operation + 1); }

    // Starts to send this rank's call to all others, in pieces; one of less than kPiece bytes, which may be 0, is the last.
    void send_call() {
        for (int to = 0; to < size_; ++to) {
            if (to == rank_) continue;
            WireWriter &message = outgoing_[static_cast<size_t>(to)];
            pack(calls_[static_cast<size_t>(rank_)], to, message);
            const Bytes &bytes = message.bytes();
            for (size_t at = 0;; at += kPiece) {
                const size_t count = std::min(kPiece, bytes.size() - at);
                sends_.emplace_back();
                check(MPI_Isend(bytes.data() + at, static_cast<int>(count), MPI_BYTE, to, kCall, comm_,
                                &sends_.back()),
                      "MPI_Isend");
                if (count < kPiece) break;
            }
        }
    }

    // Whether everything of this operation has been sent and received.
    bool progress() {
        bool all = true;
        for (int from = 0; from < size_; ++from)
            if (from != rank_ && !receive(from)) all = false;
        int sent = 1;
        if (!sends_.empty())
            check(MPI_Testall(static_cast<int>(sends_.size()), sends_.data(), &sent, MPI_STATUSES_IGNORE),
                  "MPI_Testall");
        if (!all || !sent) return false;
        sends_.clear();
        return true;
    }

    // Whether the call of rank `from` is here.
    bool receive(int from) {
        Incoming &in = incoming_[static_cast<size_t>(from)];
        while (!in.done) {
            if (in.request == MPI_REQUEST_NULL) {
                int found = 0, count = 0;
                MPI_Message message;
                MPI_Status status;
                check(MPI_Improbe(from, kCall, comm_, &found, &message, &status), "MPI_Improbe");
                if (!found) return false;
                MPI_Get_count(&status, MPI_BYTE, &count);
                const size_t at = in.pieces * kPiece;
                in.bytes.resize(at + static_cast<size_t>(count));
                check(MPI_Imrecv(in.bytes.data() + at, count, MPI_BYTE, &message, &in.request), "MPI_Imrecv");
            }
            int here = 0;
            check(MPI_Test(&in.request, &here, MPI_STATUS_IGNORE), "MPI_Test");
            if (!here) return false;
            ++in.pieces;
            in.done = in.bytes.size() < in.pieces * kPiece;
        }
        return true;
    }

    std::optional<int> missing() const {
        for (int r = 0; r < size_; ++r)
            if (r != rank_ && !incoming_[static_cast<size_t>(r)].done) return r;
        return std::nullopt;
    }

    // Throws if this rank or another one has failed.
    void look_for_failures() {
        if (failure_) throw_failure();
        if (aborted_) {
            const std::lock_guard lock(mutex_);
            fail(*abort_);
        }
        int found = 0;
        MPI_Status status;
        check(MPI_Iprobe(MPI_ANY_SOURCE, kFailure, comm_, &found, &status), "MPI_Iprobe");
        if (!found) return;
        int count = 0;
        MPI_Get_count(&status, MPI_BYTE, &count);
        std::string why(static_cast<size_t>(count), ' ');
        check(MPI_Recv(why.data(), count, MPI_BYTE, status.MPI_SOURCE, kFailure, comm_, MPI_STATUS_IGNORE),
              "MPI_Recv");
        failure_ = why;
        job_failed_ = true;
        throw_failure();
    }

    // Throws if a rank has ended without calling `operation`.
    void look_for_ends(uint64_t operation) {
        int found = 0;
        MPI_Status status;
        check(MPI_Iprobe(MPI_ANY_SOURCE, kEnd, comm_, &found, &status), "MPI_Iprobe");
        if (found) {
            uint64_t called = 0;
            check(MPI_Recv(&called, 1, MPI_UINT64_T, status.MPI_SOURCE, kEnd, comm_, MPI_STATUS_IGNORE),
                  "MPI_Recv");
            ended_[static_cast<size_t>(status.MPI_SOURCE)] = called;
        }
        for (int r = 0; r < size_; ++r)
            if (const auto called = ended_[static_cast<size_t>(r)]; called && *called <= operation)
                fail(rank_name(r) + " ended before " + name(operation));
    }

    // Tells the other ranks, and throws.
    [[noreturn]] void fail(const std::string &why) {
        failure_ = why;
        job_failed_ = true;
        for (int to = 0; to < size_; ++to)
            if (to != rank_) {
                notices_.emplace_back();
                MPI_Isend(failure_->data(), static_cast<int>(failure_->size()), MPI_BYTE, to, kFailure, comm_,
                          &notices_.back());
            }
        settle(std::chrono::milliseconds(200));
        throw_failure();
    }
    [[noreturn]] void throw_failure() const {
        throw BackendError(BackendError::Kind::Failed, failure_->empty() ? "a rank failed" : *failure_);
    }

    // Lets notices go out, for at most `time`: small messages leave at once.
    void settle(std::chrono::milliseconds time) noexcept {
        int done = 0;
        for (const auto end = Clock::now() + time; !done && Clock::now() < end; std::this_thread::yield())
            MPI_Testall(static_cast<int>(notices_.size()), notices_.data(), &done, MPI_STATUSES_IGNORE);
        if (done) notices_.clear();
    }

    // This rank calls no operation any more.
    void leave() noexcept {
        if (failure_) return;  // the others know
        end_ = called_;
        for (int to = 0; to < size_; ++to)
            if (to != rank_) {
                notices_.emplace_back();
                MPI_Isend(&end_, 1, MPI_UINT64_T, to, kEnd, comm_, &notices_.back());
            }
        settle(std::chrono::milliseconds(200));
    }

    const MPI_Comm comm_;
    const std::chrono::milliseconds deadline_;
    const OnSilence on_silence_;
    const std::chrono::seconds patience_;
    bool &job_failed_;
    int rank_ = 0, size_ = 1;
    uint64_t called_ = 0;  // number of operations
    uint64_t end_ = 0;
    std::vector<Call> calls_;                     // by rank
    std::vector<WireWriter> outgoing_;            // by rank
    std::vector<Incoming> incoming_;              // by rank
    std::vector<std::optional<uint64_t>> ended_;  // by rank: the number of operations it had called
    std::vector<MPI_Request> sends_, notices_;
    std::optional<std::string> failure_;
    std::mutex mutex_;  // of abort_
    std::optional<std::string> abort_;
    std::atomic<bool> aborted_ = false;
};

}  // namespace

MpiSession::MpiSession() {
    int started = 0;
    MPI_Initialized(&started);
    if (started)
        throw BackendError(BackendError::Kind::Failed, "MPI has been started before in this process");
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS ||
        provided < MPI_THREAD_FUNNELED)
        throw BackendError(BackendError::Kind::Failed, "MPI cannot be used from a program with threads");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

MpiSession::~MpiSession() {
    // Ranks meet before MPI_Finalize(), which a rank whose work is done would wait in for ranks that have failed.
    MPI_Request request;
    int rank = 0, all_end = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    const auto end = Clock::now() + kFailedEnd + rank * kBetweenRanks;
    for (int looks = 0; !all_end && !(failed_ && Clock::now() > end); ++looks) {
        MPI_Test(&request, &all_end, MPI_STATUS_IGNORE);
        pause(looks);
    }
    if (all_end)
        MPI_Finalize();
    else
        MPI_Abort(MPI_COMM_WORLD, 1);
}

std::unique_ptr<Communicator> MpiSession::communicator(std::chrono::milliseconds deadline,
                                                       const OnSilence &on_silence,
                                                       std::chrono::seconds patience) {
    MPI_Comm comm;
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    return std::make_unique<MpiCommunicator>(comm, deadline, on_silence, patience, failed_);
}

}  // namespace runnel::kernels
