// A chat at a pseudo terminal: what is typed when, and what the screen shows. Needs $RUNNEL.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/commands/program_support.h"
#include "tests/support/temporary.h"
#include "tests/support/terminal_model.h"

namespace runnel::testing {

inline std::string file_text(const std::filesystem::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// Keys to type, or a new size of the window, when ready(screen) becomes true.
struct Step {
    std::function<bool(const std::string &screen, bool new_prompt)> ready;
    std::string typed;
    std::optional<std::pair<int, int>> size = {};
};

inline Step at_new_prompt(std::string typed) {
    return {[](const std::string &, bool new_prompt) { return new_prompt; }, std::move(typed)};
}
inline Step when_shown(std::string text, std::string typed) {
    return {[text = std::move(text)](const std::string &screen, bool) {
                return screen.find(text) != screen.npos;
            },
            std::move(typed)};
}

// Types once the program has stopped `count` times under job control.
inline Step when_stopped(int count, std::string typed = "\n") {
    return {[count](const std::string &screen, bool) {
                int stops = 0;
                for (size_t at = 0; (at = screen.find("[stopped]\n", at)) != screen.npos; ++at) ++stops;
                return stops == count;
            },
            std::move(typed)};
}

struct TerminalChat {
    TemporaryDirectory directory;
    std::string term = "xterm-256color";
    int columns = 80, rows = 24;
    std::vector<std::string> environment = {};
    std::vector<std::string> arguments = {"-n", "4", "--ignore-eos"};
    bool job_control = false;
    std::string screen = {};  // at the end
    int unknown = 0;          // sequences that the model of the terminal does not know

    Result run(const std::vector<Step> &steps) {
        Process p = process({"chat", tiny().path.string(), "--temp", "0"});
        p.arguments.insert(p.arguments.end(), arguments.begin(), arguments.end());
        p.environment = {"XDG_STATE_HOME=" + directory.path().string(), "TERM=" + term, "LC_ALL=C",
                         "TERMINFO=/nowhere"};
        p.environment.insert(p.environment.end(), environment.begin(), environment.end());
        p.terminal = true;
        p.job_control = job_control;
        p.columns = columns, p.rows = rows;
        TerminalModel model(columns, rows);
        size_t fed = 0, step = 0, after = 0;
        const auto ready = [&](const std::string &out) {
            model.feed(std::string_view(out).substr(fed));
            fed = out.size();
            return step < steps.size() && steps[step].ready(model.text(), at_prompt(out, after));
        };
        p.resize = [&](const std::string &out) -> std::optional<std::pair<int, int>> {
            if (!ready(out) || !steps[step].size) return {};
            model.resize(steps[step].size->first, steps[step].size->second);
            after = out.size();
            return steps[step++].size;
        };
        p.type = [&](const std::string &out, bool) -> std::string {
            if (!ready(out) || steps[step].size) return "";
            after = out.size();
            return steps[step++].typed;
        };
        const Result result = execute(p);
        model.feed(std::string_view(result.out).substr(fed));
        screen = model.text();
        unknown = model.unknown();
        CHECK(step == steps.size());
        return result;
    }

    // The messages of the conversation that /save wrote.
    std::string talk() const { return (directory.path() / "talk.json").string(); }
    std::vector<std::string> said() const {
        std::vector<std::string> texts;
        const auto json = nlohmann::json::parse(file_text(talk()), nullptr, false);
        if (!json.is_object()) return texts;
        for (const auto &message : json["messages"])
            if (message["role"] == "user") texts.push_back(message["content"]);
        return texts;
    }
};

}  // namespace runnel::testing
