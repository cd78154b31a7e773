// Accumulates importance matrices: for every tensor, the sum of squared input activations by column, and the number
// of rows. Files have llama-imatrix's GGUF form, which llama-quantize and importance.h read, and can be merged.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace runnel::quantize {

struct ImportanceSums {
    struct Entry {
        int64_t columns = 0;
        std::vector<double> sums;  // [matrices][columns], of x^2
        // [matrices]: number of rows added. Only experts and heads have several matrices.
        std::vector<int64_t> counts;

        // As Importance::load() reads it from a saved file: mean squares, ones for a matrix without rows.
        std::vector<float> importance() const;
    };
    std::map<std::string, Entry, std::less<>> entries;
    std::vector<std::string> datasets;   // names of the texts
    int64_t chunks = 0, chunk_size = 0;  // of the texts; tokens per chunk

    // Adds an input row of one of a tensor's matrices.
    void add(std::string_view tensor, int64_t matrix, int64_t matrices, std::span<const float> input);

    // Adds the sums of another file. An entry with one count also merges with one that has a count per
    // matrix. Throws QuantizeError if sizes differ.
    void merge(const ImportanceSums &other);

    // The GGUF form only. Throws QuantizeError, gguf::FileError.
    static ImportanceSums load(const std::filesystem::path &path);
    // The file appears when it is complete; entries without any row are left out. Throws QuantizeError for sums
    // that are not finite, gguf::WriteError.
    void save(const std::filesystem::path &path, bool overwrite) const;
};

// Statistics of the mean squares a_j = sum_j / count of one tensor, over all its matrices with rows.
struct ImportanceStatistics {
    double sum = 0, smallest = 0, largest = 0, mean = 0, deviation = 0;
    double active = 0;    // share of a_j > 1e-5
    double entropy = 0;   // of a_j / sum, in bits; log2(number) if all are equal
    double outliers = 0;  // share of a_j more than one deviation above the mean
    size_t met = 0, matrices = 0;
    int64_t fewest = 0;  // rows of the matrix with the fewest
};
ImportanceStatistics statistics_of(const ImportanceSums::Entry &entry);

}  // namespace runnel::quantize
