#include "engine/commands/models/sha256.h"

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "tests/support/random.h"

using runnel::commands::Sha256;

namespace {

std::string hash(std::string_view text) {
    Sha256 sha;
    sha.add(std::as_bytes(std::span(text)));
    return sha.digest();
}

}  // namespace

// The examples of FIPS 180-4 and NIST's byte-oriented vectors.
TEST_CASE("sha256: the published vectors") {
    CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnop"
               "qrsmnopqrst"
               "nopqrstu") == "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    CHECK(hash(std::string(1'000'000, 'a')) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    CHECK(hash("\xbd") == "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
    CHECK(hash(std::string(55, '\0')) == "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
    CHECK(hash(std::string(56, '\0')) == "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
    CHECK(hash(std::string(64, '\0')) == "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
}

TEST_CASE("sha256: the hash does not depend on how the bytes are split") {
    runnel::testing::Random random(256);
    std::string text;
    for (int i = 0; i < 400; ++i) text += static_cast<char>(random.below(256));
    const std::string whole = hash(text);
    for (int i = 0; i < 100; ++i) {
        Sha256 sha;
        for (size_t at = 0; at < text.size();) {
            const size_t n = std::min<size_t>(random.below(150), text.size() - at);
            sha.add(std::as_bytes(std::span(text).subspan(at, n)));
            at += n;
        }
        CAPTURE(i);
        CHECK(sha.digest() == whole);
    }
}
