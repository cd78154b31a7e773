// A prompt cache. If the first byte says so, its checksum is corrected: otherwise the code after the check
// would hardly be reached.
#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/decode/prompt_file.h"
#include "tests/fuzz/targets.h"
#include "tests/support/memory_file.h"
#include "tests/support/toy_rig.h"

namespace runnel::fuzz {
namespace {

constexpr base::Checksum::Value kIdentity{1, 2};
constexpr size_t kHeader = 40, kIdentityAt = 16, kSum = sizeof kIdentity;

void repair(std::vector<uint8_t> &bytes) {
    if (bytes.size() < kHeader + kSum) return;
    std::memcpy(bytes.data() + kIdentityAt, &kIdentity, sizeof kIdentity);
    base::Checksum sum;
    sum.add(std::as_bytes(std::span(bytes).first(bytes.size() - kSum)));
    const base::Checksum::Value value = sum.value();
    std::memcpy(bytes.data() + bytes.size() - kSum, &value, sizeof value);
}

}  // namespace

void prompt_file(Input input) {
    Bytes choices(input);
    const bool repairs = choices.byte() % 4 != 0;
    std::vector<uint8_t> bytes(choices.rest().begin(), choices.rest().end());
    if (repairs) repair(bytes);
    const testing::MemoryFile file(bytes);
    testing::ToyRig rig({.context = 96, .batch = 32});
    const auto result = decode::load_prompt_file(file.path(), kIdentity, rig.executor);
    using State = decode::PromptFileResult::State;
    require((result.state == State::Loaded) == result.why.empty() || result.state == State::Absent,
            "a refusal says why");
    if (result.state != State::Loaded || result.tokens.empty()) return;
    // A loaded sequence can be continued like any other.
    auto sequence = rig.executor.new_sequence();
    std::vector<decode::TokenId> tokens = result.tokens;
    tokens.push_back(1);
    const int32_t known = rig.executor.attach(sequence, tokens);
    require(known >= 0 && static_cast<size_t>(known) < tokens.size(), "a token is left to compute");
}

}  // namespace runnel::fuzz
