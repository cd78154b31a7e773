// Chats that are saved while they go on: one file of JSON lines per chat, in the user's state folder.
//
//   {"runnel_chat": 1, "model": "/models/q8.gguf"}     the first line
//   {"model": "/models/q4.gguf"}                       the chat was opened with another model
//   ... the entries of a Conversation
//
// A line is written at once and synced to the disk, so that a killed program or a power failure loses no more than an
// unfinished answer. A line that is incomplete or damaged is skipped when the file is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/commands/chat/conversation.h"
#include "engine/commands/io.h"
#include "engine/commands/json.h"

namespace runnel::commands {

struct SavedChat {
    std::filesystem::path path;
    std::string title;  // set by the user, or the beginning of the first message
    std::string model;  // the path of the model used last
    size_t messages = 0;
    int64_t seconds = 0;  // since the last change
};

// $XDG_STATE_HOME/runnel/chats, by default ~/.local/state/runnel/chats. Empty if no history is kept
// (history_file.h). Does not create it.
std::filesystem::path chats_folder();

// The chats in a folder, the newest first: all, or the `most` newest ones.
std::vector<SavedChat> saved_chats(const std::filesystem::path &folder, size_t most = SIZE_MAX);
// Finds a chat by its number in that list, from 1 on, by title or by file name; nullopt if there is none.
std::optional<SavedChat> find_chat(const std::filesystem::path &folder, const std::string &name);
// The newest chat with this model; with any model if `model` is empty.
std::optional<SavedChat> last_chat(const std::filesystem::path &folder, const std::string &model);

class ChatFile {
  public:
    // A new chat with a model. Its file is created with the first message, and entries before that are kept in memory
    // until then. An empty `folder`: nothing is saved.
    ChatFile(std::filesystem::path folder, std::string model);
    // Reads a saved chat and continues its file. If another process has it open, the chat goes on in a copy
    // (is_copy()); if nothing can be written, it is not saved. Throws InputError if the file cannot be read
    // or is not a chat.
    ChatFile(const SavedChat &chat, std::string model, Conversation &into);

    // Appends and syncs. On OutputError, the entry is not in the file, and the chat is no longer saved.
    void append(const Json &entry);

    bool saves() const { return !folder_.empty(); }
    bool is_copy() const { return is_copy_; }
    size_t damaged() const { return damaged_; }                  // lines that were skipped
    const std::filesystem::path &path() const { return path_; }  // empty: there is no file yet

  private:
    void create();
    void write(const std::string &lines);

    std::filesystem::path folder_, path_;
    std::string waiting_;             // lines to write once the file is created
    std::optional<Descriptor> file_;  // locked
    bool is_copy_ = false;
    size_t damaged_ = 0;
};

}  // namespace runnel::commands
