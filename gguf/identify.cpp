#include "gguf/identify.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "gguf/printable.h"

namespace runnel::gguf {
namespace {

using namespace std::string_view_literals;

struct Magic {
    std::string_view start;
    std::string_view what;
};

constexpr Magic kMagics[] = {
    {"FUGG"sv, "is a big-endian GGUF file; only little-endian files are supported"},
    {"lmgg"sv, "is an old ggml file (before GGUF); get the model as GGUF"},
    {"fmgg"sv, "is an old ggmf file (before GGUF); get the model as GGUF"},
    {"tjgg"sv, "is an old ggjt file (before GGUF); get the model as GGUF"},
    {"algg"sv, "is an old ggla adapter (before GGUF); get it as GGUF"},
    {"nsgg"sv, "is an old llama.cpp session file, not a model"},
    {"PK\x03\x04"sv, "is a zip archive (a PyTorch checkpoint?); convert the model to GGUF first"},
    {"\x80\x02"sv, "is a Python pickle (a PyTorch checkpoint?); convert the model to GGUF first"},
    {"\x80\x03"sv, "is a Python pickle (a PyTorch checkpoint?); convert the model to GGUF first"},
    {"\x80\x04"sv, "is a Python pickle (a PyTorch checkpoint?); convert the model to GGUF first"},
    {"\x80\x05"sv, "is a Python pickle (a PyTorch checkpoint?); convert the model to GGUF first"},
    {"\x89HDF"sv, "is an HDF5 file; convert the model to GGUF first"},
    {"\x93NUMPY"sv, "is a NumPy array, not a GGUF file"},
    {"\x1f\x8b"sv, "is compressed with gzip; decompress it first"},
    {"\x28\xb5\x2f\xfd"sv, "is compressed with zstd; decompress it first"},
    {"\xfd"
     "7zXZ\0"sv,
     "is compressed with xz; decompress it first"},
    {"BZh"sv, "is compressed with bzip2; decompress it first"},
    {"7z\xbc\xaf"sv, "is a 7z archive; unpack it first"},
    {"\x7f"
     "ELF"sv,
     "is an executable or library, not a GGUF file"},
    {"version https://git-lfs"sv, "is a Git LFS pointer, not the model itself; fetch it with git lfs pull"},
    {"<!DOCTYPE"sv, "is a web page, not a GGUF file; the download went wrong"},
    {"<!doctype"sv, "is a web page, not a GGUF file; the download went wrong"},
    {"<html"sv, "is a web page, not a GGUF file; the download went wrong"},
};

// safetensors: the size of a JSON header as a 64-bit number, then the header.
bool is_safetensors(std::string_view head, uint64_t file_bytes) {
    uint64_t header = 0;
    if (head.size() < 9) return false;
    std::memcpy(&header, head.data(), 8);
    return head[8] == '{' && header >= 2 && header <= file_bytes - 8;
}

}  // namespace

std::string identify(std::span<const std::byte> bytes) {
    if (bytes.empty()) return "is empty";
    const std::string_view head(reinterpret_cast<const char *>(bytes.data()),
                                std::min<size_t>(bytes.size(), 64));
    for (const Magic &magic : kMagics)
        if (head.starts_with(magic.start)) return std::string(magic.what);
    if (is_safetensors(head, bytes.size()))
        return "is a safetensors file; make a GGUF file of its folder with runnel convert";
    if ("GGUF"sv.starts_with(head)) return "ends inside the GGUF magic (truncated)";
    return "is not a GGUF file: it starts with " + quoted(head.substr(0, 4)) + " instead of 'GGUF'";
}

}  // namespace runnel::gguf
