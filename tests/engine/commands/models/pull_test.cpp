// `runnel pull`, -hf and `runnel rm` with correct and hostile servers on the loopback.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

#include <atomic>
#include <fstream>
#include <string>

#include "engine/commands/models/hub_api.h"
#include "engine/commands/models/pull.h"
#include "engine/commands/models/sha256.h"
#include "engine/text/json.h"
#include "tests/engine/commands/models/hub_server.h"
#include "tests/engine/commands/models/models_support.h"
#include "tests/support/http_server.h"
#include "tests/support/random.h"

using namespace runnel::testing;
using namespace runnel::commands;
namespace fs = std::filesystem;

namespace {

std::string text_of(const fs::path &path) {
    const auto bytes = read_bytes(path);
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

Process pulling(const Home &home, const HttpServer &server, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"pull", "some/model-GGUF", "--request-bytes", "65536"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Process p = home.process(arguments);
    p.environment.push_back("HF_ENDPOINT=" + server.address());
    return p;
}

fs::path folder(const Home &home) {
    return home.hub() / "models--some--model-GGUF";
}
fs::path partial(const Home &home, const std::string &content) {
    return folder(home) / "blobs" / (hash_of(content) + ".incomplete");
}

void check_pulled(const Home &home, const Result &r, const std::string &file, const std::string &content) {
    CAPTURE(r.err);
    CHECK(r.code == 0);
    const fs::path link = folder(home) / "snapshots" / kCommit / file;
    CHECK(r.out == link.string() + "\n");
    CHECK(fs::is_symlink(link));
    CHECK(text_of(link) == content);
    CHECK_FALSE(fs::exists(partial(home, content)));
}

const std::string &content() {
    static const std::string bytes = noise(1'000'000, 7);
    return bytes;
}

std::vector<Listed> one_file() {
    return {{.path = "model-Q4_K_M.gguf", .content = content()}};
}

}  // namespace

TEST_CASE("pull: a model arrives in the hub's layout, and the token stays with its host") {
    if (absent()) return;
    const Home home;
    const std::string model = text_of(demo_model());
    const std::vector<Listed> files = {{.path = "sub/model-Q8_0.gguf", .content = model},
                                       {.path = "mmproj-model-Q8_0.gguf", .content = "x"},
                                       {.path = "model-F16.gguf", .content = "y"}};
    std::atomic<int> port = 0;
    HttpServer server(hub(files, [&](const ServerRequest &request) {
        if (request.path == "/cdn/file?a=b") return ranged(request, model);
        return ServerReply{
            .status = 302,
            .headers = {"Location: http://localhost:" + std::to_string(port) + "/cdn/file?a=b"}};
    }));
    port = std::stoi(server.address().substr(server.address().rfind(':') + 1));
    Process p = pulling(home, server);
    p.environment.push_back("HF_TOKEN=hf_secret");
    const Result r = execute(p);
    check_pulled(home, r, "sub/model-Q8_0.gguf", model);
    CHECK(r.err.find("hf_secret") == std::string::npos);
    CHECK(r.err == "runnel: downloading model-Q8_0.gguf, 3.0 MiB\n");
    const fs::path link = folder(home) / "snapshots" / kCommit / "sub/model-Q8_0.gguf";
    CHECK(fs::read_symlink(link) == "../../../blobs/" + hash_of(model));
    CHECK(text_of(folder(home) / "refs/main") == kCommit);
    CHECK(fs::exists(home.hub() / ".locks/models--some--model-GGUF" / (hash_of(model) + ".lock")));
    size_t at_origin = 0, elsewhere = 0;
    for (const ServerRequest &request : server.requests()) {
        const bool is_origin = request.header("host").starts_with("127.0.0.1");
        CHECK(is_origin == !request.path.starts_with("/cdn"));
        CHECK(request.header("authorization") == (is_origin ? "Bearer hf_secret" : ""));
        ++(is_origin ? at_origin : elsewhere);
    }
    CHECK(elsewhere >= model.size() / 65536);
    // After the first redirects, ranges are requested from the server that has the file.
    CHECK(at_origin < elsewhere / 2);

    // A file in the cache is not downloaded again, and -hf does not even contact the server.
    const size_t before = server.requests().size();
    check_pulled(home, execute(p), "sub/model-Q8_0.gguf", model);
    CHECK(server.requests().size() == before + 1);
    const std::vector<std::string> rest = {"--raw", "-p", "Once upon", "-n", "3", "--temp", "0", "-t", "1"};
    std::vector<std::string> plain = {"run", demo_model().string()};
    plain.insert(plain.end(), rest.begin(), rest.end());
    const std::string wanted = home.run(plain).out;
    CHECK(wanted.size() > 2);
    for (const std::vector<std::string> &model_words :
         {std::vector<std::string>{"-hf", "some/model-GGUF"},
          {"hf.co/some/model-GGUF:Q8_0"},
          {"some/model-GGUF"},
          {"-hf", "some/model-GGUF", "-hff", "sub/model-Q8_0.gguf"},
          {"-m", "model-Q8_0"}}) {
        std::vector<std::string> arguments = {"run", "--offline"};
        arguments.insert(arguments.end(), model_words.begin(), model_words.end());
        arguments.insert(arguments.end(), rest.begin(), rest.end());
        const Result run = home.run(arguments);
        CAPTURE(run.err);
        CHECK(run.code == 0);
        CHECK(run.out == wanted);
    }
}

TEST_CASE("pull: -hf downloads a missing model, also as a draft") {
    if (absent()) return;
    const Home home;
    const std::string model = text_of(demo_draft());
    HttpServer server(hub({{.path = "m-Q8_0.gguf", .content = model}},
                          [&](const ServerRequest &request) { return ranged(request, model); }));
    for (const std::vector<std::string> &words : {std::vector<std::string>{"-hf", "some/model-GGUF:Q8_0"},
                                                  {demo_model().string(), "-hfd", "some/model-GGUF"}}) {
        fs::remove_all(home.hub());
        std::vector<std::string> arguments = {"run", "--raw", "-p", "Once", "-n", "3", "-t", "1"};
        arguments.insert(arguments.end(), words.begin(), words.end());
        Process p = home.process(arguments);
        p.environment.push_back("HF_ENDPOINT=" + server.address());
        const Result r = execute(p);
        CAPTURE(r.err);
        CHECK(r.code == 0);
        CHECK(r.out.size() > 0);
        CHECK(text_of(folder(home) / "snapshots" / kCommit / "m-Q8_0.gguf") == model);
    }
}

TEST_CASE("pull: all parts of a split model arrive, and none is visible before all are complete") {
    if (absent()) return;
    const Home home;
    const std::string one = noise(100'000, 1), two = noise(70'000, 2);
    std::atomic<bool> fails = true;
    HttpServer server(hub({{.path = "m-Q4_K_M-00002-of-00002.gguf", .content = two},
                           {.path = "m-Q4_K_M-00001-of-00002.gguf", .content = one}},
                          [&](const ServerRequest &request) {
                              const bool is_second = request.path.find("00002-of") != std::string::npos;
                              if (is_second && fails) return ServerReply{.status = 403};
                              return ranged(request, is_second ? two : one);
                          }));
    const Result failed = execute(pulling(home, server));
    CHECK(failed.code == 2);
    CHECK_FALSE(fs::exists(folder(home) / "snapshots"));
    fails = false;
    check_pulled(home, execute(pulling(home, server)), "m-Q4_K_M-00001-of-00002.gguf", one);
    CHECK(text_of(folder(home) / "snapshots" / kCommit / "m-Q4_K_M-00002-of-00002.gguf") == two);
}

TEST_CASE("pull: connections that break, stall or fail are replaced by new ones") {
    if (absent()) return;
    std::atomic<int> count = 0;
    using Kind = ServerReply (*)(ServerReply, int);
    const std::pair<const char *, Kind> kinds[] = {
        {"every one is cut",
         [](ServerReply reply, int) {
             reply.cut = 30'000;
             return reply;
         }},
        {"no length, cut",
         [](ServerReply reply, int) {
             reply.cut = 30'000;
             reply.length = "-";
             return reply;
         }},
        {"the second stalls",
         [](ServerReply reply, int n) {
             if (n == 1) reply.cut = 1000, reply.stalls = true;
             return reply;
         }},
        {"some fail",
         [](ServerReply reply, int n) { return n % 3 == 1 ? ServerReply{.status = 503} : reply; }},
        {"some are empty", [](ServerReply reply, int n) {
             if (n % 3 == 1) reply.cut = 0;
             return reply;
         }}};
    for (const auto &entry : kinds) {
        const std::string name = entry.first;
        CAPTURE(name);
        const Home home;
        count = 0;
        HttpServer server(hub(one_file(), [&, change = entry.second](const ServerRequest &request) {
            return change(ranged(request, content()), count++);
        }));
        const std::string timeout = name == "the second stalls" ? "3" : "30";
        check_pulled(home, execute(pulling(home, server, {"--timeout", timeout, "--retries", "100"})),
                     "model-Q4_K_M.gguf", content());
    }
    // If no byte arrives, the attempts end and the partial file stays.
    const Home home;
    HttpServer server(hub(one_file(), [&](const ServerRequest &request) {
        return range_of(request, content().size()).first < 200'000 ? ranged(request, content())
                                                                   : ServerReply{.status = 500};
    }));
    const Result r = execute(pulling(home, server, {"--retries", "1", "--connections", "1"}));
    CHECK(r.code == 1);
    CHECK(r.err.find("status 500; the downloaded part is kept") != std::string::npos);
    CHECK(text_of(partial(home, content())) == content().substr(0, 4 * 65536));
}

TEST_CASE("pull: an interrupted or killed download continues where it ended") {
    if (absent()) return;
    for (const int number : {SIGINT, SIGKILL}) {
        CAPTURE(number);
        const Home home;
        std::atomic<bool> is_slow = true, is_killed = false;
        std::atomic<int> pid = 0, sent = 0;
        HttpServer server(hub(one_file(), [&](const ServerRequest &request) {
            ServerReply reply = ranged(request, content());
            // One range in the middle does not end, so that later ones arrive before it.
            if (is_slow && range_of(request, content().size()).first == 3 * 65536) {
                reply.cut = 1000;
                reply.stalls = true;
            }
            if (is_slow && ++sent >= 7 && pid && !is_killed.exchange(true)) kill(pid, number);
            return reply;
        }));
        Process p = pulling(home, server);
        p.started = [&](int started) { pid = started; };
        const Result r = execute(p);
        CHECK(is_killed);
        CHECK(r.code == (number == SIGINT ? 130 : 128 + SIGKILL));
        CHECK(r.out == "");
        const std::string kept = text_of(partial(home, content()));
        CHECK(content().starts_with(kept));
        CHECK(kept.size() < content().size());
        CHECK_FALSE(fs::exists(folder(home) / "snapshots"));
        is_slow = false;
        const size_t before = server.requests().size();
        check_pulled(home, execute(pulling(home, server)), "model-Q4_K_M.gguf", content());
        const auto requests = server.requests();
        for (size_t i = before; i < requests.size(); ++i)
            if (!is_api(requests[i])) CHECK(range_of(requests[i], content().size()).first >= kept.size());
    }
}

TEST_CASE("pull: without range support, a file that was cut off is requested again, as is the list") {
    if (absent()) return;
    const Home home;
    std::atomic<int> count = 0;
    std::atomic<int> lists = 0;
    const HttpServer::Answer answer = hub(one_file(), [&](const ServerRequest &) {
        ServerReply reply{.body = content()};
        if (count++ == 0) reply.cut = 300'000;
        return reply;
    });
    HttpServer server([&](const ServerRequest &request) {
        ServerReply reply = answer(request);
        if (is_api(request) && lists++ == 0) reply.cut = 20;
        return reply;
    });
    check_pulled(home, execute(pulling(home, server)), "model-Q4_K_M.gguf", content());
    CHECK(count == 2);
    CHECK(lists == 2);
}

TEST_CASE("pull: what a server says is checked against what it sends") {
    if (absent()) return;
    const std::string longer = content() + "more";
    const std::string other = noise(content().size(), 8);
    const Listed file = one_file()[0];
    const std::vector<Listed> wrong_hash = {
        {.path = file.path, .content = content(), .sha256 = std::string(64, '0')}};
    const std::vector<Listed> shorter = {
        {.path = file.path, .content = content(), .bytes = content().size() - 9}};
    const std::vector<Listed> larger = {
        {.path = file.path, .content = content(), .bytes = content().size() + 200'000}};
    const std::vector<Listed> enormous = {
        {.path = file.path, .content = content(), .bytes = size_t{1} << 45}};
    struct Case {
        const char *name;
        std::vector<Listed> files;
        HttpServer::Answer serve;
        std::string message;
    };
    const auto honest = [](const ServerRequest &request) { return ranged(request, content()); };
    const std::vector<Case> cases = {
        {"hash", wrong_hash, honest, "the download was removed"},
        {"content",
         {file},
         [&](const ServerRequest &r) { return ranged(r, other); },
         "the download was removed"},
        {"shorter list", shorter, honest,
         "the server's file has 1000000 bytes, but its list of files says 999991"},
        {"longer list", larger, honest, "its list of files says 1200000"},
        {"longer range",
         {file},
         [](const ServerRequest &r) {
             ServerReply reply = ranged(r, content());
             reply.body += "more";
             return reply;
         },
         "the server sends more than the file's"},
        {"longer file",
         {file},
         [&](const ServerRequest &) { return ServerReply{.body = longer}; },
         "sends more than"},
        {"longer file without length",
         {file},
         [&](const ServerRequest &) { return ServerReply{.body = longer, .length = "-"}; },
         "sends more than"},
        {"another range",
         {file},
         [](const ServerRequest &r) {
             ServerReply reply = ranged(r, content());
             reply.headers = {"Content-Range: bytes 5-9/1000000"};
             return reply;
         },
         "a different range than the one requested"},
        {"416", {file}, [](const ServerRequest &) { return ServerReply{.status = 416}; }, "(416)"},
        {"redirects in a ring",
         {file},
         [](const ServerRequest &r) {
             return ServerReply{.status = 302, .headers = {"Location: " + r.path}};
         },
         "too many redirects"},
        {"redirect to a file",
         {file},
         [](const ServerRequest &) {
             return ServerReply{.status = 302, .headers = {"Location: file:///etc/passwd"}};
         },
         "neither http nor https"},
        {"redirect to nowhere",
         {file},
         [](const ServerRequest &) { return ServerReply{.status = 302}; },
         "redirects without an address"},
        {"no room", enormous, honest, "not enough disk space: 32768.0 GiB are still to be downloaded"},
        {"gated",
         {file},
         [](const ServerRequest &) {
             return ServerReply{.status = 403, .headers = {"X-Error-Code: GatedRepo"}};
         },
         "is gated: accept its terms at"}};
    for (const Case &c : cases) {
        CAPTURE(std::string(c.name));
        const Home home;
        HttpServer server(hub(c.files, c.serve));
        const Result r = execute(pulling(home, server, {"--retries", "0"}));
        CAPTURE(r.err);
        CHECK((r.code == 1 || r.code == 2));
        CHECK(r.out == "");
        CHECK(r.err.find(c.message) != std::string::npos);
        CHECK_FALSE(fs::exists(folder(home) / "snapshots"));
        if (c.message == "the download was removed") CHECK(fs::is_empty(folder(home) / "blobs"));
    }
    // The hash reveals a partial file with other bytes, and the file is downloaded again.
    const Home home;
    HttpServer server(hub({file}, honest));
    write_text(partial(home, content()), other.substr(0, 400'000));
    check_pulled(home, execute(pulling(home, server)), "model-Q4_K_M.gguf", content());
    // A partial file that is too long is not kept.
    fs::remove_all(home.hub());
    write_text(partial(home, content()), longer);
    check_pulled(home, execute(pulling(home, server)), "model-Q4_K_M.gguf", content());
}

TEST_CASE("pull: wrong names, refused access and wrong lists give one clear line") {
    if (absent()) return;
    struct Case {
        ServerReply reply;
        std::string argument, message;
        int code;
    };
    const std::vector<Listed> files = {{.path = "a-Q8_0.gguf", .content = "1"},
                                       {.path = "big-Q2_K-00001-of-00003.gguf", .content = "2"},
                                       {.path = "../../evil-Q5_0.gguf", .content = "3"}};
    const ServerReply good{.body = listing(files)};
    const std::vector<Case> cases = {
        {{.status = 404, .headers = {"X-Error-Code: RepoNotFound"}},
         "some/model",
         "not found on http://127.0.0.1",
         2},
        {{.status = 401}, "some/model", "no such repository, or it is private (401)", 2},
        {{.status = 401, .headers = {"X-Error-Code: GatedRepo"}}, "some/model", "then set HF_TOKEN", 2},
        {{.status = 403}, "some/model", "refuses access (403)", 2},
        {{.status = 429}, "some/model", "too many requests", 1},
        {{.status = 500}, "some/model", "status 500", 1},
        {{.body = "<html>"}, "some/model", "not JSON", 1},
        {{.body = "{}"}, "some/model", "no commit", 1},
        {{.body = R"({"sha": "../x", "siblings": []})"}, "some/model", "no commit", 1},
        {{.body = R"({"sha": ")" + kCommit + R"(", "siblings": []})"}, "some/model", "no GGUF model", 2},
        {good, "some/model:Q3_K_M", "no such model, but Q8_0, Q2_K", 2},
        {good, "some/model:Q5_0", "no such model", 2},
        {good, "some/model:Q2_K", "is one of 3 parts, but the repository has 1", 2},
        {good, "some/model/b.gguf", "no such model", 2},
        {good, "model", "names no model", 2},
        {good, "../model", "names no model", 2},
        {good, "some/model:../x", "names no model", 2},
        {good, "some/model/../../x.gguf", "names no model", 2}};
    for (const Case &c : cases) {
        CAPTURE(c.argument);
        const Home home;
        HttpServer server([&](const ServerRequest &) { return c.reply; });
        Process p = home.process({"pull", c.argument});
        p.environment.push_back("HF_ENDPOINT=" + server.address() + "/");
        const Result r = execute(p);
        CAPTURE(r.err);
        CHECK(r.code == c.code);
        check_message(r);
        CHECK(r.err.find(c.message) != std::string::npos);
        CHECK_FALSE(fs::exists(home.hub()));
    }
    const Home home;
    const auto with = [&](const std::string &variable, std::vector<std::string> arguments) {
        Process p = home.process(std::move(arguments));
        p.environment.push_back("HF_ENDPOINT=http://127.0.0.1:1");
        if (!variable.empty()) p.environment.push_back(variable);
        const Result r = execute(p);
        check_message(r);
        return r.err;
    };
    CHECK(with("", {"pull", "a/b"}).find("cannot connect to 127.0.0.1:1: is this machine online?") !=
          std::string::npos);
    CHECK(with("RUNNEL_LIBCURL=/nowhere.so", {"pull", "a/b"}).find("apt install libcurl4") !=
          std::string::npos);
    CHECK(with("HF_ENDPOINT=ftp://x", {"pull", "a/b"}).find("HF_ENDPOINT") != std::string::npos);
    CHECK(with("HF_TOKEN=hf_x\ny", {"pull", "a/b"}).find("HF_TOKEN has characters") != std::string::npos);
    CHECK(with("", {"run", "-hf", "a/b", "--offline", "-p", "x"}).find("nothing is downloaded") !=
          std::string::npos);
    CHECK(with("HF_HUB_OFFLINE=1", {"run", "hf.co/a/b", "x"}).find("nothing is downloaded") !=
          std::string::npos);
    CHECK(with("", {"run", "-hf", "a", "-p", "x"}).find("write USER/REPO") != std::string::npos);
    CHECK(with("", {"run", "-hf", "a/b", "-m", "c", "-p", "x"}).find("not with both") != std::string::npos);
    CHECK(with("", {"run", "a/b:Q4_0", "x"}).find("runnel pull a/b:Q4_0 downloads it") != std::string::npos);
    CHECK(with("", {"pul", "a/b"}).find("did you mean pull?") != std::string::npos);
}

TEST_CASE("pull: a proxy set in the environment is used") {
    if (absent()) return;
    const Home home;
    const HttpServer::Answer answer =
        hub(one_file(), [](const ServerRequest &request) { return ranged(request, content()); });
    const std::string endpoint = "http://models.invalid";
    HttpServer proxy([&](ServerRequest request) {
        if (!request.path.starts_with(endpoint)) return ServerReply{.status = 500};
        request.path = request.path.substr(endpoint.size());
        return answer(request);
    });
    Process p = pulling(home, proxy);
    p.environment.push_back("HF_ENDPOINT=" + endpoint);
    p.environment.push_back("http_proxy=" + proxy.address());
    check_pulled(home, execute(p), "model-Q4_K_M.gguf", content());
}

TEST_CASE("pull: the progress is a line on a terminal") {
    if (absent()) return;
    const Home home;
    HttpServer server(
        hub(one_file(), [](const ServerRequest &request) { return ranged(request, content()); }));
    Process p = pulling(home, server);
    p.terminal = true;
    const Result r = execute(p);
    CAPTURE(r.out);
    CHECK(r.code == 0);
    CHECK(r.out.find("model-Q4_K_M.gguf [") != std::string::npos);
    CHECK(r.out.find("of 976.6 KiB") != std::string::npos);
    CHECK(r.out.find("downloading") == std::string::npos);
    CHECK(r.out.find("\r\x1b[K" + folder(home).string()) != std::string::npos);
}

TEST_CASE("pull: waits for a file that another program downloads") {
    if (absent()) return;
    const Home home;
    HttpServer server(
        hub(one_file(), [](const ServerRequest &request) { return ranged(request, content()); }));
    const fs::path lock = home.hub() / ".locks/models--some--model-GGUF" / (hash_of(content()) + ".lock");
    write_text(lock, "");
    const int fd = open(lock.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(flock(fd, LOCK_EX | LOCK_NB) == 0);
    Process p = pulling(home, server);

    std::atomic<bool> over = false;
    std::thread other([&] {
        while (server.requests().empty() && !over) usleep(10'000);
        usleep(200'000);
        // The other program has finished.
        write_text(folder(home) / "blobs" / hash_of(content()), content());
        close(fd);
    });
    const Result r = execute(p);
    over = true;
    other.join();
    check_pulled(home, r, "model-Q4_K_M.gguf", content());
    CHECK(server.requests().size() == 1);
}

TEST_CASE("rm: removes a model and the files that only it uses, and only from Hugging Face's cache") {
    if (absent()) return;
    const Home home;
    home.add_hub("models--a--b", "one-Q8_0.gguf", demo_model());
    home.add_hub("models--a--b", "two-Q4_0.gguf", demo_draft());
    const fs::path root = home.hub() / "models--a--b", snapshot = root / "snapshots" / kCommit;
    // A second name for the first file's blob, and a link that leads out of the cache.
    fs::create_symlink("../../blobs/blob-of-one-Q8_0.gguf", snapshot / "same-Q6_K.gguf");
    write_text(home.path() / "mine.txt", "mine");
    fs::create_symlink("../../../../../../mine.txt", snapshot / "out-Q2_K.gguf");
    const auto remove = [&](const std::string &name) { return home.run({"rm", name, "--yes"}); };

    const Result unasked = home.run({"rm", "a/b:Q8_0"});
    CHECK(unasked.code == 2);
    CHECK(fs::exists(snapshot / "one-Q8_0.gguf"));
    CHECK(remove("a/b:Q8_0").code == 0);
    CHECK_FALSE(fs::is_symlink(snapshot / "one-Q8_0.gguf"));
    CHECK(fs::exists(snapshot / "same-Q6_K.gguf"));
    CHECK(remove("a/b/same-Q6_K.gguf").code == 0);
    CHECK_FALSE(fs::exists(root / "blobs/blob-of-one-Q8_0.gguf"));
    CHECK(remove("a/b:Q2_K").code == 0);
    CHECK(fs::exists(home.path() / "mine.txt"));
    CHECK(fs::exists(snapshot / "two-Q4_0.gguf"));
    for (const char *name : {"a/b:Q3_K", "a/c", "..", "../..", "models--a--b", "a/b/../../x.gguf", ""}) {
        CAPTURE(std::string(name));
        CHECK(remove(name).code == 2);
    }
    // At a terminal, the command asks for confirmation.
    for (const char *answer : {"n\n", "y\n"}) {
        CHECK(fs::exists(snapshot / "two-Q4_0.gguf"));
        Process p = home.process({"rm", "a/b"});
        p.terminal = true;
        p.type = [typed = false, answer](const std::string &shown, bool) mutable {
            if (typed || shown.find("[y/N]") == std::string::npos) return std::string();
            typed = true;
            return std::string(answer);
        };
        const Result r = execute(p);
        CAPTURE(r.out);
        CHECK(r.code == (answer[0] == 'y' ? 0 : 1));
    }
    CHECK_FALSE(fs::exists(root));
    fs::create_directories(home.path() / ".cache/llama.cpp");
    fs::copy_file(demo_draft(), home.path() / ".cache/llama.cpp/small.gguf");
    const Result other = remove("small");
    CHECK(other.code == 2);
    CHECK(other.err.find("llama.cpp") != std::string::npos);
    CHECK(fs::exists(home.path() / ".cache/llama.cpp/small.gguf"));
}

TEST_CASE("rm: removes one model, and no other model, download or linked folder") {
    if (absent()) return;
    const Home home;
    home.add_hub("models--a--b", "one-Q4_0.gguf", demo_draft());
    const fs::path root = home.hub() / "models--a--b";
    write_text(root / "blobs/two.incomplete", "half of another");
    const fs::path deep = root / "snapshots" / kCommit / "1/2/3/4/5/n-Q8_0.gguf", mine = home.path() / "mine";
    fs::create_directories(deep.parent_path());
    fs::copy_file(demo_draft(), deep);
    fs::create_directories(mine);
    fs::copy_file(demo_draft(), mine / "m-Q4_0.gguf");
    fs::create_directory_symlink(mine, root / "snapshots" / std::string(40, 'f'));
    for (const char *name : {"a/b:0", "a/b:Q4", "a/b:Q8"}) {
        CAPTURE(std::string(name));
        CHECK(home.run({"rm", name, "--yes"}).code == 2);
    }
    CHECK(home.run({"rm", "a/b:Q4_0", "--yes"}).code == 0);
    CHECK_FALSE(fs::exists(root / "snapshots" / kCommit / "one-Q4_0.gguf"));
    CHECK_FALSE(fs::exists(root / "blobs/blob-of-one-Q4_0.gguf"));
    CHECK(fs::exists(root / "blobs/two.incomplete"));
    CHECK(fs::exists(deep));
    CHECK(fs::exists(mine / "m-Q4_0.gguf"));
    fs::remove(root / "snapshots" / std::string(40, 'f'));
    fs::rename(root / "blobs", home.path() / "blobs");
    fs::create_directory_symlink(home.path() / "blobs", root / "blobs");
    const Result linked = home.run({"rm", "a/b:Q8_0", "--yes"});
    CHECK(linked.code == 2);
    CHECK(linked.err.find("is a link") != std::string::npos);
}

TEST_CASE("pull: names of models are parsed, and the progress line shows sizes and speed") {
    const auto name = [](const char *text) {
        const auto parsed = parse_hub_name(text);
        return parsed ? parsed->repo + "|" + parsed->tag + "|" + parsed->file : "-";
    };
    CHECK(name("a/b") == "a/b||");
    CHECK(name("a/b:Q4_K_M") == "a/b|Q4_K_M|");
    CHECK(name("hf.co/a/b:Q4_K_M") == "a/b|Q4_K_M|");
    CHECK(name("https://huggingface.co/a/b") == "a/b||");
    CHECK(name("a/b/c/d.gguf") == "a/b||c/d.gguf");
    CHECK(name("https://huggingface.co/a/b/blob/main/d.gguf") == "a/b||d.gguf");
    CHECK(name("https://huggingface.co/a/b/resolve/main/d.gguf?download=true") == "a/b||d.gguf");
    for (const char *bad :
         {"", "a", "a/b:", "a/b/c", "a/b/../d.gguf", "a/b:c/d", "https://example.org/a/b", "/a/b", "a/b\x1b"})
        CHECK(name(bad) == "-");
    CHECK_FALSE(parse_hub_address("a/b"));
    CHECK(parse_hub_address("hf.co/a/b"));
    CHECK(origin_of("HTTPS://Host/x") == "https://host:443");
    CHECK(origin_of("http://user@host:8080?x") == "http://host:8080");
    CHECK(origin_of("http://[::1]/x") == "http://[::1]:80");
    for (const char *bad : {"ftp://x", "x", "://x", "http://", "http:///x"}) CHECK(origin_of(bad).empty());
    CHECK(encoded_path("a b/%c.gguf") == "a%20b/%25c.gguf");
    const std::string line = pull_line("m.gguf", uint64_t{1} << 30, uint64_t{1} << 32, 51.2e6);
    CHECK(line.starts_with("m.gguf ["));
    CHECK(line.find(" 25%") != std::string::npos);
    CHECK(line.ends_with("1.0 GiB of 4.0 GiB  51.2 MB/s  1:03 left"));
    CHECK(pull_line("m", 0, uint64_t{1} << 40, 1e8).ends_with("3:03:16 left"));
    CHECK(pull_line("m", 5, 5, 1e6).ends_with("MB/s"));
}
