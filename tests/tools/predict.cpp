// The cost model's command line, for scripts/predict.
//   predict count COMPILER OBJECT...   prints tests/gpu/model/instructions.txt, counted in the objects
//   predict write TABLE MEASURED PAGE  rewrites the model's part of PREDICTIONS.md; MEASURED: tests/gpu/model/measured.txt
#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/gpu/model/report.h"

using namespace runnel::tests;
using namespace runnel::tests::model;

static std::string text_of(const std::string &path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error(path + ": cannot be read");
    return {std::istreambuf_iterator<char>(in), {}};
}

static void count(const std::vector<std::string> &arguments) {
    CodeTable table;
    for (size_t i = 1; i < arguments.size(); ++i)
        for (const MachineCode &code : read_machine_code(arguments[i]))
            if (std::ranges::count(modeled_kernels(), code.name) > 0)
                table[{code.arch, code.name}] = count_linear(code);
    if (table.empty()) throw std::runtime_error("the objects have none of the modeled kernels");
    std::cout << to_text(table, arguments.front());
}

static CodeTable table_in(const std::string &path) {
    std::string compiler;
    return read_code_table(text_of(path), compiler);
}

static void write(const std::string &table, const std::string &measured, const std::string &page) {
    const std::string text = with_report(text_of(page), report(table_in(table), table_in(measured)));
    std::ofstream out(page, std::ios::binary);
    out << text;
    if (!out.flush()) throw std::runtime_error(page + ": cannot be written");
}

int main(int argc, char **argv) {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    try {
        if (arguments.size() >= 3 && arguments[0] == "count") {
            count({arguments.begin() + 1, arguments.end()});
        } else if (arguments.size() == 4 && arguments[0] == "write") {
            write(arguments[1], arguments[2], arguments[3]);
        } else {
            std::cerr << "usage: predict count COMPILER OBJECT... | predict write TABLE MEASURED PAGE\n";
            return 2;
        }
    } catch (const std::exception &e) {
        std::cerr << "predict: " << e.what() << "\n";
        return 1;
    }
}
