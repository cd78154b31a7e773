#include "engine/decode/next_token.h"

namespace runnel::decode {

TokenId sample_next(const Session &session, Sampler &sampler) {
    if (session.candidates().empty()) return sampler.sample(session.logits(), session.tokens());
    if (const auto token = sampler.sample(session.candidates(), session.tokens())) return *token;
    return sampler.sample(session.read_logits(), session.tokens());
}

}  // namespace runnel::decode
