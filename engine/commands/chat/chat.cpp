// `runnel chat`: talk to a model in the terminal, or line by line through a pipe.
#include <optional>
#include <utility>

#include "engine/commands/chat/chat_loop.h"
#include "engine/commands/chat/mcp/servers.h"
#include "engine/commands/commands.h"
#include "engine/commands/generation.h"

namespace runnel::commands {
namespace {

constexpr int32_t kBranchWindows = 16;  // branches of a conversation that stay in the cache

}  // namespace

int chat(const ChatOptions &options, mcp::Servers *servers, Io &io) {
    decode::StopRequest stop;  // interrupts loading
    std::optional<InterruptScope> loading(std::in_place, stop);
    decode::EngineOptions engine_flags = engine_options(options.model, io, stop);
    leave_room(engine_flags, options.draft);
    engine_flags.kept_windows = kBranchWindows;
    note_inputs({options.draft.model, options.system_file, options.chat.file, options.chat.tools, options.mcp,
                 options.generation.constraint.grammar, options.generation.constraint.schema});
    check_stats_file(options.stats, io);
    decode::Engine engine(engine_flags);
    auto drafts = drafting(options.draft, options.model, engine, 1, io, stop);
    if (servers) servers->connect(io, stop);
    loading.reset();
    if (stop.requested()) throw Interrupted{};
    return Chat(options, engine, std::move(drafts), servers, io).loop();
}

}  // namespace runnel::commands
