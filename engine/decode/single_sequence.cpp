#include "engine/decode/single_sequence.h"

namespace runnel::decode {

bool SingleSequence::feed(std::span<const TokenId> tokens, const StopRequest *stop) {
    if (tokens.empty()) return true;
    entry_.append(tokens);
    return compute(stop);
}

bool SingleSequence::compute(const StopRequest *stop) {
    bool going = true;
    try {
        while (entry_.due() && going) going = scheduler_.step(stop);
    } catch (...) {
        entry_.settle();
        throw;
    }
    if (!going) {
        entry_.settle();
        entry_.drop_rows();
    }
    return going;
}

}  // namespace runnel::decode
