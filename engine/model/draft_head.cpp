#include "engine/model/draft_head.h"

#include "engine/model/assistant.h"
#include "engine/model/dflash.h"
#include "engine/model/eagle3.h"
#include "engine/model/metadata.h"

namespace runnel::model {

std::optional<HeadKind> head_kind(const gguf::File &file) {
    const gguf::Value *value = file.find("general.architecture");
    const auto name = value ? value->as_string() : std::nullopt;
    if (name == kEagle3) return HeadKind::Eagle3;
    if (name == kAssistant) return HeadKind::Assistant;
    if (name == kDFlash) return HeadKind::DFlash;
    return std::nullopt;
}

std::string_view head_title(HeadKind kind) {
    switch (kind) {
        case HeadKind::Eagle3:
            return "an EAGLE-3 head";
        case HeadKind::Assistant:
            return "a Gemma 4 assistant";
        case HeadKind::DFlash:
            break;
    }
    return "a DFlash drafter";
}

HeadTarget head_target(const gguf::File &file) {
    const auto kind = head_kind(file);
    if (!kind) throw ModelError(name_of(file) + ": not a draft head");
    switch (*kind) {
        case HeadKind::Eagle3:
            return eagle3_target(file);
        case HeadKind::Assistant:
            return assistant_target(file);
        case HeadKind::DFlash:
            break;
    }
    return dflash_target(file);
}

DraftHead add_head(Model &target, const gguf::File &target_file, const gguf::File &head, int64_t context) {
    switch (head_target(head).kind) {
        case HeadKind::Eagle3:
            return add_eagle3(target, target_file, head, context);
        case HeadKind::Assistant:
            return make_assistant(target, target_file, head, context);
        case HeadKind::DFlash:
            break;
    }
    return add_dflash(target, target_file, head, context);
}

}  // namespace runnel::model
