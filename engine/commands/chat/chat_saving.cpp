// The commands of a chat that read or write files, and the saving of the chat itself.
#include <filesystem>
#include <utility>

#include "engine/commands/chat/chat_loop.h"
#include "engine/commands/chat/conversation_text.h"
#include "engine/commands/chat/mcp/servers.h"
#include "gguf/output_file.h"
#include "gguf/printable.h"

namespace runnel::commands {
namespace {

namespace fs = std::filesystem;

constexpr size_t kListed = 20, kColumns = 80;

// The canonical path of a model's file: the same for all names of the file.
std::string model_name(const std::string &path) {
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(path, error);
    return error ? path : whole.string();
}

}  // namespace

void Chat::save_entry(const Json &entry) {
    if (!file_) return;
    try {
        file_->append(entry);
    } catch (const OutputError &error) {
        io_.note("this chat is no longer saved: " + std::string(error.what()));
    }
}

// Without a terminal, a chat is saved only with --continue or --chat.
void Chat::open_at_start() {
    const fs::path folder = chats_folder();
    const std::string model = model_name(options_.model.path);
    std::optional<SavedChat> chat;
    if (options_.saved)
        chat = find_chat(folder, *options_.saved);
    else if (options_.go_on)
        chat = last_chat(folder, model);
    if (options_.saved && !chat && options_.saved->find_first_not_of("0123456789") == std::string::npos)
        throw UsageError("--chat " + gguf::quoted(*options_.saved) + ": there is no chat with that number");
    const bool is_wanted = options_.saved || options_.go_on;
    if (is_wanted && folder.empty())
        io_.note("this chat is not saved: RUNNEL_NO_HISTORY is set, or there is no home directory");
    if (!chat && options_.go_on && !options_.saved)
        io_.note("there is no saved chat with this model: a new one begins");
    if (terminal_ || is_wanted) file_.emplace(folder, model);
    const std::string system = conversation_.system();
    if (chat) open_chat(*chat);
    if (!system.empty() && (!chat || system != conversation_.system())) conversation_.set_system(system);
    if (options_.saved && !chat) conversation_.set_title(*options_.saved);
}

void Chat::open_chat(const SavedChat &chat) {
    Conversation opened([this](const Json &entry) { save_entry(entry); });
    ChatFile file(chat, model_name(options_.model.path), opened);
    model_.forget();
    file_.emplace(std::move(file));
    conversation_ = std::move(opened);
    uint32_t stream = 0;  // the stream of the last answer
    for (const Json &entry : conversation_.entries())
        if (const Json *of = text::find_member(entry, "stream")) stream = of->get<uint32_t>();
    model_.set_stream(stream);
    close_calls();
    if (servers_) servers_->forget_granted();
    if (file_->damaged() > 0)
        io_.note(std::to_string(file_->damaged()) + " damaged lines of the saved chat were skipped");
    if (!file_->saves())
        io_.note("this chat is not saved: nothing can be written to " +
                 gguf::printable(chat.path.parent_path().native(), 4096));
    else if (file_->is_copy())
        io_.note("the chat is open in another window or its file is read-only, so this is a copy of it");
    const bool is_open_question =
        conversation_.last_question() == conversation_.head() && conversation_.head() != Conversation::kRoot;
    say("\"" + clipped(chat.title, kColumns) + "\", " +
        std::to_string(conversation_.chain(conversation_.head()).size()) + " messages" +
        (is_open_question ? "; the last one has no answer yet: /regen answers it" : ""));
}

// A new chat with the same system prompt.
void Chat::begin_chat() {
    const std::string system = conversation_.system();
    model_.forget();
    attached_.clear();
    if (servers_) servers_->forget_granted();
    if (file_) file_.emplace(chats_folder(), model_name(options_.model.path));
    conversation_ = Conversation([this](const Json &entry) { save_entry(entry); });
    if (!system.empty()) conversation_.set_system(system);
}

// When saving is turned off, the file keeps what was saved so far. When it is turned on again, a new file
// gets the whole conversation.
void Chat::keep_history(bool on) {
    if (on && chats_folder().empty())
        throw InputError("chats are not saved: RUNNEL_NO_HISTORY is set, or there is no home directory");
    if (on && (!file_ || !file_->saves())) {
        file_.emplace(chats_folder(), model_name(options_.model.path));
        for (const Json &entry : conversation_.entries()) save_entry(entry);
    }
    if (!on) file_.reset();
    if (!on || file_->saves())
        say(on ? "this chat is saved"
               : "from now on this chat is not saved; RUNNEL_NO_HISTORY=1 also keeps typed lines out of the "
                 "history");
}

// Writes a file that the user names; asks before it replaces one.
void Chat::write_to(const std::string &path, const std::function<void(bool overwrite)> &write) {
    try {
        write(io_.overwrite);
    } catch (const gguf::OutputRefused &error) {
        if (error.why != gguf::OutputRefused::Why::Exists || !terminal_) throw;
        if (!agrees(gguf::printable(path, 4096) + " exists already. Replace it? [y/N] "))
            return io_.err.try_write("not saved\n");
        write(true);
    }
    say("written to " + gguf::printable(path, 4096));
}

void Chat::save(const std::string &name) {
    if (name.empty()) throw InputError("/save FILE: the file's name is missing");
    const std::string path = home_expanded(name);
    write_to(path, [&](bool overwrite) { conversation_.transcript().save(path, overwrite); });
}

void Chat::export_text(const std::string &name) {
    if (name.empty()) throw InputError("/export FILE.md: the file's name is missing");
    const std::string path = home_expanded(name);
    write_to(path, [&](bool overwrite) { save_text(path, markdown(conversation_), overwrite); });
}

void Chat::load(const std::string &path) {
    if (path.empty()) throw InputError("/load FILE: the file's name is missing");
    const Transcript loaded = Transcript::load(regular_file(path));
    begin_chat();
    if (loaded.system != conversation_.system()) conversation_.set_system(loaded.system);
    for (const text::Message &message : loaded.messages) conversation_.add({.message = message});
    close_calls();
    io_.err.try_write(std::to_string(loaded.messages.size()) + " messages\n");
}

void Chat::list_chats(const std::string &) {
    const std::vector<SavedChat> chats = saved_chats(chats_folder(), kListed);
    const fs::path open = file_ ? file_->path() : fs::path();
    io_.err.try_write(chats.empty() ? "no saved chats\n"
                                    : list_text(chats, open, kColumns) + "/open N continues one\n");
}

void Chat::open(const std::string &name) {
    if (name.empty()) throw InputError("/open needs a chat's title, or its number in /chats");
    const std::optional<SavedChat> chat = find_chat(chats_folder(), name);
    if (!chat) throw InputError("there is no chat " + gguf::quoted(name) + "; /chats lists them");
    if (file_ && file_->saves() && chat->path == file_->path()) throw InputError("that chat is already open");
    attached_.clear();
    open_chat(*chat);
}

void Chat::title(const std::string &text) {
    if (text.empty())
        return io_.err.try_write(
            (conversation_.title().empty() ? "no title" : clipped(conversation_.title(), kColumns)) + "\n");
    conversation_.set_title(text);
    say("this chat is called \"" + clipped(text, kColumns) + "\"");
}

}  // namespace runnel::commands
