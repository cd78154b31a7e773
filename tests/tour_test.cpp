// scripts/tour: a page with every exhibit, which needs nothing from outside.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "tests/engine/commands/program_support.h"
#include "tests/support/demo_model.h"
#include "tests/support/skip.h"
#include "tests/support/temporary.h"

using namespace runnel::testing;

namespace {

constexpr const char *kTitles[] = {"Speed",
                                   "What the KV cache saves",
                                   "Memory or arithmetic",
                                   "Where the time goes",
                                   "What fits into memory",
                                   "Batching",
                                   "Requests at random times",
                                   "What attention costs",
                                   "Pages of the KV cache",
                                   "Reservation and pages",
                                   "Two models in turns",
                                   "Drafts as a timeline",
                                   "Attention",
                                   "One head"};

std::string content(const std::filesystem::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

size_t count(const std::string &text, const std::string &part) {
    size_t found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++found;
    return found;
}

int tour(const std::filesystem::path &out, const std::string &program) {
    return std::system(("python3 scripts/tour --quick --device cpu --model " + shell_word(demo_model()) +
                        " --out " + shell_word(out) + " " + shell_word(program) + " >/dev/null 2>&1")
                           .c_str());
}

}  // namespace

TEST_CASE("tour: the page has a section, a figure and a plot of every exhibit, and loads nothing") {
    if (absent()) return;
    if (std::system("python3 --version >/dev/null 2>&1") != 0) return skip("no python3");
    const TemporaryDirectory directory;
    const auto out = directory / "tour.html";
    CHECK(tour(out, *program_under_test()) == 0);
    const std::string page = content(out);
    size_t number = 0;
    for (const char *title : kTitles) {
        CAPTURE(std::string(title));
        const std::string begin = "<section id=\"e" + std::to_string(++number) + "\"><h2>" + title + "</h2>";
        const size_t at = page.find(begin);
        REQUIRE(at != std::string::npos);
        const std::string section = page.substr(at, page.find("</section>", at) - at);
        CHECK(section.find("class=\"error\"") == std::string::npos);
        CHECK(section.find("<pre>") + 40 < section.size());  // text below
        const bool has_plot = std::string(title) != "Speed" && std::string(title) != "Pages of the KV cache";
        CHECK(count(section, "<svg ") == (has_plot ? 1 : 0));
    }
    CHECK(count(page, "<section ") == number);
    CHECK(page.find("pages, nothing shared") != std::string::npos);
    CHECK(page.find("largest difference between fused and unfused") != std::string::npos);
    // Nothing from outside: links lead into the page, and there are no scripts, images or style sheets.
    const std::regex target("(href|src)=\"([^\"]*)");
    for (std::sregex_iterator link(page.begin(), page.end(), target), end; link != end; ++link)
        CHECK((*link)[2].str().starts_with("#e"));
    for (const char *outside : {"<script", "<img", "<link", "url(", "@import"})
        CHECK(page.find(outside) == std::string::npos);

    // Exhibits that fail are counted, and the page says so.
    const auto failed = directory / "failed.html";
    CHECK(tour(failed, "/bin/false") != 0);
    CHECK(count(content(failed), "class=\"error\">exit code 1") == number);
}
