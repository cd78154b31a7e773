#include "tests/ptx/operations.h"

namespace runnel::ptx {

const Operations &Operations::all() {
    static const Operations known = [] {
        Operations o;
        add_integers(o), add_floats(o), add_conversions(o), add_memory(o), add_collectives(o);
        return o;
    }();
    return known;
}

const Operation *Operations::find(const std::string &spelling) const {
    const auto found = known_.find(spelling);
    return found == known_.end() ? nullptr : &found->second;
}

void Operations::add(const std::string &spelling, Operation operation) {
    known_[spelling] = std::move(operation);
}

}  // namespace runnel::ptx
