#include "tests/simt/block.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "tests/support/random.h"

namespace runnel::simt {

namespace {

// Mapping stacks is expensive, so those not in use are kept. Protected by device_lock().
std::vector<std::unique_ptr<Stacks>> &spare_stacks() {
    static std::vector<std::unique_ptr<Stacks>> all;
    return all;
}

std::unique_ptr<Stacks> take_stacks() {
    auto &spare = spare_stacks();
    if (spare.empty()) return std::make_unique<Stacks>(kMaxWarps * kLanes);
    auto taken = std::move(spare.back());
    spare.pop_back();
    return taken;
}

// The shared memory of launches and its shadow, kept likewise. Old shadows do no harm: they name earlier runs.
std::vector<std::unique_ptr<SharedPages>> &spare_shared() {
    static std::vector<std::unique_ptr<SharedPages>> all;
    return all;
}

std::unique_ptr<SharedPages> take_shared(size_t bytes) {
    auto &spare = spare_shared();
    const auto found = std::ranges::find_if(spare, [=](const auto &pages) { return pages->bytes >= bytes; });
    if (found == spare.end())
        return std::make_unique<SharedPages>(std::max(bytes, size_t{settings().shared_per_block}));
    auto taken = std::move(*found);
    spare.erase(found);
    return taken;
}

bool waits(const Warp &w) {
    return std::ranges::any_of(w.lanes, [](const Lane *lane) { return lane->state == Lane::State::Waiting; });
}

uint64_t take_runs(uint32_t blocks) {
    static uint64_t next = 1;  // under device_lock()
    const uint64_t first = next;
    next += blocks;
    return first;
}

}  // namespace

std::string to_string(const Place &place) {
    const std::string file = place.file_name();
    return file.substr(file.rfind('/') + 1) + ":" + std::to_string(place.line());
}

void Known::merge(const Known &other) {
    for (size_t w = 0; w < clocks.size(); ++w) clocks[w] = std::max(clocks[w], other.clocks[w]);
    for (const uint32_t key : other.single)
        if (std::find(single.begin(), single.end(), key) == single.end()) single.push_back(key);
}

static void merge(Knowledge &to, const Knowledge &from) {
    for (const auto &[run, known] : from) to[run].merge(known);
}

Launch::Launch(const LaunchCall &call, const Launch *ahead)
    : kernel_(call.kernel),
      shape_(call.shape),
      shared_bytes_(shape_.shared.on(settings().is_turing())),
      params_(call.params),
      shared_(take_shared(shared_bytes_)),
      stacks_(take_stacks()),
      first_run_(take_runs(shape_.blocks)),
      ahead_(ahead ? ahead->first_run_ : first_run_),
      random_(testing::splitmix(settings().seed ^ first_run_)),
      order_(shape_.blocks) {
    if (kernel_.threads % kLanes != 0 || kernel_.threads > kLanes * kMaxWarps || shape_.blocks == 0 ||
        shared_bytes_ > settings().shared_per_block)
        throw Violation(std::string(kernel_.name) + ": the device cannot run " +
                        std::to_string(shape_.blocks) + " blocks of " + std::to_string(kernel_.threads) +
                        " threads with " + std::to_string(shared_bytes_) + " bytes of shared memory");
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random() % i]);
    for (int t = 0; t < kernel_.threads; ++t) lanes_.push_back(std::make_unique<Lane>((*stacks_)[t]));
    warps_.resize(static_cast<size_t>(kernel_.threads / kLanes));
}

Launch::~Launch() {
    spare_stacks().push_back(std::move(stacks_));
    spare_shared().push_back(std::move(shared_));
}

uint64_t Launch::random() {
    return testing::splitmix(random_ += 0x9e3779b97f4a7c15u);
}

bool Launch::is_parameter(const void *p, size_t bytes) const {
    const auto *at = static_cast<const std::byte *>(p);
    return at >= params_.data() && at + bytes <= params_.data() + params_.size();
}

// While it exists, `launch` is the running one.
class Launch::Running {
  public:
    explicit Running(Launch *launch) : outer_(std::exchange(running_, launch)) {}
    ~Running() { running_ = outer_; }
    Running(const Running &) = delete;
    Running &operator=(const Running &) = delete;

  private:
    Launch *const outer_;
};

void Launch::run(Launch *next) {
    const Running now(this);
    memory().take_traffic();
    const size_t early = next ? random() % order_.size() : order_.size();
    for (size_t i = 0; i < order_.size() && !failed_; ++i) {
        if (i == early) {
            count_traffic();
            next->run_early();
        }
        if (i > 0 || !begun_) begin_block(i);
        go_on();
    }
    count_traffic();
    if (failed_) throw Violation(failure_);
}

// Runs the first block as far as possible while the previous launch is not complete.
void Launch::run_early() {
    const Running now(this);
    early_ = begun_ = true;
    begin_block(0);
    go_on();
    early_ = false;
    for (const auto &lane : lanes_)
        if (lane->state == Lane::State::Waiting) lane->state = Lane::State::Ready;
    count_traffic();
    if (failed_) throw Violation(failure_);
}

void Launch::wait_for_launch_ahead() {
    if (lane_->waited) return;
    Lane &me = *lane_;
    if (early_) {
        me.state = Lane::State::Waiting;
        me.fiber.leave();
    }
    me.waited = true;
}

void Launch::count_traffic() {
    for (const auto &[name, bytes] : memory().take_traffic()) traffic_[name] += bytes;
}

// --- scheduling ------------------------------------------------------------------------------------------

void Launch::begin_block(size_t i) {
    block_ = order_[i];
    this_run_ = first_run_ + i;
    block_barriers_ = 0;
    for (size_t w = 0; w < warps_.size(); ++w) {
        Warp &warp = warps_[w] = Warp{};
        warp.index = static_cast<int>(w);
        warp.clocks[w] = 1;
        for (int l = 0; l < kLanes; ++l) {
            Lane &lane = *lanes_[w * kLanes + static_cast<size_t>(l)];
            warp.lanes[static_cast<size_t>(l)] = &lane;
            lane.warp = &warp;
            lane.index = l;
            lane.state = Lane::State::Ready;
            lane.open.clear();
            lane.committed.clear();
            lane.waited = !shape_.dependent;
            lane.fences = 0;
            lane.fenced.clear();
            lane.acquired.clear();
            lane.fiber.start(
                [](void *self) {
                    Launch &launch = *static_cast<Launch *>(self);
                    reinterpret_cast<void (*)(const void *)>(const_cast<void *>(launch.kernel_.entry))(
                        launch.params_.data());
                    Lane &me = launch.lane();
                    if (!me.waited)
                        launch.fail([&] {
                            return std::string("a dependent launch: a thread ended without grid_dep_wait()") +
                                   (settings().has_wait() ? "" : ", which the loaded code does not have");
                        });
                    for (const auto &group : me.committed)
                        if (!group.empty()) launch.fail("a thread ended without waiting for its cp_async16");
                    if (!me.open.empty()) launch.fail("a thread ended without waiting for its cp_async16");
                    me.state = Lane::State::Finished;
                },
                this);
        }
    }
}

void Launch::go_on() {
    size_t finished = 0;
    while (!failed_ && finished < warps_.size()) {
        std::array<Warp *, kMaxWarps> ready;
        size_t count = 0;
        finished = 0;
        for (Warp &w : warps_) {
            if (w.finished)
                ++finished;
            else if (w.barrier < 0 && !(early_ && waits(w)))
                ready[count++] = &w;
        }
        if (count > 0)
            run_warp(*ready[random() % count]);
        else if (early_ && std::ranges::any_of(warps_, waits))
            return;
        else if (finished < warps_.size())
            report_deadlock();
        if (!failed_) release_barriers();
    }
}

void Launch::enter(Lane &lane) {
    lane_ = &lane;
    lane.fiber.enter();
    lane_ = nullptr;
}

// Runs the warp until it waits at a barrier or for the previous launch, or has finished.
void Launch::run_warp(Warp &w) {
    while (!failed_ && !w.finished && w.barrier < 0) {
        const uint64_t draw = random();
        const size_t first = draw & 31u, step = draw >> 5 & 1u ? 1 : 31;
        size_t at = first;
        for (int i = 0; i < kLanes && !failed_; ++i, at = (at + step) % kLanes)
            if (w.lanes[at]->state == Lane::State::Ready) enter(*w.lanes[at]);
        if (early_ && waits(w)) return;
        if (!failed_) complete_collective(w);
    }
}

void Launch::complete_collective(Warp &w) {
    const auto finished = [](const Lane *lane) { return lane->state == Lane::State::Finished; };
    if (std::all_of(w.lanes.begin(), w.lanes.end(), finished)) {
        w.finished = true;
        return;
    }
    std::array<void *, kLanes> arguments;
    const Lane &first = **std::find_if_not(w.lanes.begin(), w.lanes.end(), finished);
    for (size_t i = 0; i < kLanes; ++i) {
        Lane &lane = *w.lanes[i];
        const bool same = !finished(&lane) && lane.collective == first.collective &&
                          lane.place.line() == first.place.line() &&
                          lane.place.column() == first.place.column() &&
                          (lane.place.file_name() == first.place.file_name() ||
                           std::strcmp(lane.place.file_name(), first.place.file_name()) == 0);
        if (!same) {
            failed_ = true;
            failure_ = std::string(kernel_.name) + ": block " + std::to_string(block_) + ", warp " +
                       std::to_string(w.index) + " diverged: lane " + std::to_string(first.index) +
                       " waits for the warp at " + to_string(first.place) + ", lane " +
                       std::to_string(lane.index) +
                       (finished(&lane) ? " has returned" : " at " + to_string(lane.place));
            return;
        }
        arguments[i] = lane.argument;
        lane.state = Lane::State::Ready;
    }
    first.collective(arguments.data());
}

void Launch::rendezvous(Collective collective, void *argument, const Place &place) {
    Lane &me = *lane_;
    me.state = Lane::State::Arrived;
    me.collective = collective;
    me.argument = argument;
    me.place = place;
    me.fiber.leave();
}

namespace {

struct BarrierArgument {
    Warp *warp;
    int id, threads;
    Place place;
};

}  // namespace

void Launch::barrier(int id, int threads, const Place &place) {
    BarrierArgument argument{lane_->warp, id, threads, place};
    rendezvous(
        [](void *const *arguments) {
            const auto &a = *static_cast<const BarrierArgument *>(arguments[0]);
            a.warp->barrier = a.id;
            a.warp->barrier_threads = a.threads;
            a.warp->barrier_place = a.place;
        },
        &argument, place);
}

void Launch::release_barriers() {
    for (Warp &first : warps_) {
        if (first.barrier < 0) continue;
        std::array<Warp *, kMaxWarps> waiting;
        size_t count = 0;
        for (Warp &w : warps_)
            if (w.barrier == first.barrier) waiting[count++] = &w;
        if (static_cast<int>(count) * kLanes < first.barrier_threads) continue;
        const std::span<Warp *const> members = std::span(waiting).first(count);
        const bool whole = first.barrier == 0;
        std::array<uint32_t, kMaxWarps> joined{};
        Knowledge known;
        bool waited = false;
        for (const Warp *w : members) {
            if (whole && w->barrier_place.line() != first.barrier_place.line()) {
                failed_ = true;
                failure_ = std::string(kernel_.name) + ": block_sync at different places: warp " +
                           std::to_string(first.index) + " at " + to_string(first.barrier_place) + ", warp " +
                           std::to_string(w->index) + " at " + to_string(w->barrier_place);
                return;
            }
            for (size_t i = 0; i < joined.size(); ++i) joined[i] = std::max(joined[i], w->clocks[i]);
            merge(known, w->known);
            for (const Lane *lane : w->lanes) waited |= lane->waited;
        }
        for (Warp *w : members) {
            w->clocks = joined;
            advance_clock(*w);
            w->known = known;
            w->barrier = -1;
            for (Lane *lane : w->lanes) lane->waited = waited;
        }
        if (whole) ++block_barriers_;
    }
}

void Launch::report_deadlock() {
    failed_ = true;
    failure_ = std::string(kernel_.name) + ": block " + std::to_string(block_) + ": a barrier that";
    for (const Warp &w : warps_)
        if (w.barrier >= 0) {
            failure_ += " warp " + std::to_string(w.index) + " waits at (" + to_string(w.barrier_place) +
                        ", barrier " + std::to_string(w.barrier) + " of " +
                        std::to_string(w.barrier_threads) + " threads)";
            break;
        }
    failure_ += " is never reached by the others:";
    for (const Warp &w : warps_)
        failure_ += " warp " + std::to_string(w.index) +
                    (w.finished ? " has returned;" : " is at " + to_string(w.barrier_place) + ";");
}

void Launch::note_failure(const std::string &what) {
    failed_ = true;
    failure_ = std::string(kernel_.name) + ": block " + std::to_string(block_) + ", thread " +
               std::to_string(thread()) + ": " + what;
}

// --- which accesses a lane knows to have happened -----------------------------------------------------------

bool Launch::ordered(const Access &before) const {
    if (before.block < since()) return true;
    const Warp &w = *lane_->warp;
    if (before.block == this_run_) {
        const uint32_t known = w.clocks[before.warp];
        if (before.warp != static_cast<uint32_t>(w.index)) return before.clock <= known;
        return before.clock < known || before.lane == static_cast<uint32_t>(lane_->index);
    }
    const auto it = w.known.find(before.block);
    if (it == w.known.end()) return false;
    const uint32_t key = before.warp << 25 | before.lane << 20 | before.clock;
    const auto &single = it->second.single;
    return before.clock <= it->second.clocks[before.warp] ||
           std::find(single.begin(), single.end(), key) != single.end();
}

void Launch::fence() {
    Lane &me = *lane_;
    Warp &w = *me.warp;
    merge(w.known, me.acquired);
    me.acquired.clear();
    me.fenced = w.known;
    Known own;
    own.clocks = w.clocks;
    // A lane knows all accesses of its warp before the last warp_sync, and its own accesses.
    const auto index = static_cast<size_t>(w.index);
    own.single.push_back(static_cast<uint32_t>(w.index) << 25 | static_cast<uint32_t>(me.index) << 20 |
                         own.clocks[index]);
    --own.clocks[index];
    me.fenced[this_run_] = own;
}

void Launch::hand_over(const void *atomic) {
    Knowledge &there = atomics_[atomic];
    merge(lane_->acquired, there);
    merge(there, lane_->fenced);
}

std::string Launch::describe(const Access &access) const {
    std::string text = "thread " + std::to_string(access.warp * kLanes + access.lane);
    if (access.block < first_run_) return text + " of the previous launch";
    if (access.block >= first_run_ + order_.size()) return text + " of the next launch";
    if (access.block != this_run_) text += " of block " + std::to_string(order_[access.block - first_run_]);
    return text;
}

}  // namespace runnel::simt
