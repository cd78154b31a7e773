#include "gguf/base/trace.h"

namespace runnel::base {

void Trace::add(Event event) {
    if (events_.size() < kMostEvents)
        events_.push_back(std::move(event));
    else
        ++omitted_;
}

void Trace::mark(const char *name, std::vector<std::pair<const char *, int64_t>> notes) {
    if (current_) current_->add({name, current_->now(), -1, std::move(notes)});
}

void TraceSpan::end() {
    if (!trace_) return;
    event_.seconds = trace_->now() - event_.begin;
    trace_->add(std::move(event_));
    trace_ = nullptr;
}

}  // namespace runnel::base
