// The options of `runnel quantize`.
#include <memory>

#include "engine/commands/cli/command.h"
#include "engine/commands/quantize/quantize.h"
#include "engine/commands/sandbox/sandbox_option.h"

namespace runnel::commands {

Command quantize_command() {
    Command command{
        .name = "quantize",
        .usage = "IN OUT TYPE | IN OUT --target-size SIZE",
        .summary = "a model file in another format",
        .description =
            "Writes the model IN to OUT with its weights as TYPE: one of llama.cpp's types or mixes (Q4_K_M, "
            "Q8_0, IQ4_XS, F16, ...), with the bytes that llama.cpp's own quantizer writes. OUT appears when "
            "it is complete. With --target-size or --target-bpw, chooses a type for each tensor instead: the "
            "least damage that fits, estimated from the error of each tensor in each type and from how "
            "sensitive the model is to it. With -f, that sensitivity is measured on a text; without, it "
            "is a fixed figure per kind of tensor. With -f or --held-out, the whole chosen model is then "
            "measured on other text, and with -f the sensitivity is measured again around the choice; both "
            "keep the chosen model in memory. "
            "Methods: standard makes the scales and levels of llama.cpp's quantizer (ggml-quants.c), byte "
            "for byte, with or without --imatrix. "
            "absmax takes the scale of each group of weights from its largest and smallest value and rounds "
            "to the nearest level. It searches nothing, as in the first 8-bit formats (Dettmers et al. 2022, "
            "arXiv:2208.07339), and has no IQ1 to IQ3. "
            "imatrix is standard with --imatrix, which it demands: the search weights errors by the mean "
            "square of each column's inputs (llama.cpp, pull request 4861). "
            "search takes the scales with the least squared error of the weights that our own search finds, "
            "for Q2_K to Q6_K and IQ4; it ignores --imatrix. "
            "awq scales the channels of the inputs of matrices, so that columns with large activations lose "
            "less: the matrices' columns are multiplied by the scales, and the norms or rows that make the "
            "inputs are divided by them (Lin et al. 2023, arXiv:2306.00978). The scales with the least error "
            "of the products on the text of -f are used, or none if none is better; then imatrix quantizes, "
            "with the importance of the same text. Inputs that cannot be scaled are reported. gptq rounds a "
            "matrix column by column and lets "
            "the later columns make up for the error, so that its outputs on the text of -f change least "
            "(Frantar et al. 2022, arXiv:2210.17323). The inputs of a layer come from the model with all "
            "earlier layers quantized; matrices that gptq cannot round are reported, and llama.cpp's search "
            "quantizes them with the importance of the same text.",
        .examples = {"quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M",
                     "quantize model-f16.gguf small.gguf IQ2_M --imatrix model.imatrix",
                     "quantize model-f16.gguf x Q4_K_M --tensor-type ffn_down=Q6_K --dry-run",
                     "quantize model-f16.gguf small.gguf --target-size 4.2G -f text.txt",
                     "quantize model-f16.gguf x --target-bpw 4.25 --dry-run --report",
                     "quantize model-f16.gguf good.gguf --target-kl 0.02 -f text.txt",
                     "quantize model-f16.gguf small.gguf Q3_K_M --method gptq -f text.txt",
                     "quantize model-f16.gguf small.gguf Q3_K_M --method awq -f text.txt"},
        .operands = 2};
    auto o = std::make_shared<QuantizeOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Output);
    table
        .text("--imatrix", o->importance,
              "importance of the columns; IQ1 and IQ2 types, IQ3_XXS and Q2_K_S need it, except with "
              "--method awq")
        .takes("FILE");
    table
        .list("--tensor-type", o->tensor_types,
              "a type for tensors by name, PATTERN=TYPE; the first match counts")
        .takes("PATTERN=TYPE");
    table.text("--tensor-type-file", o->tensor_type_file, "a file with such rules, one per line")
        .takes("FILE");
    table.text("--output-tensor-type", o->output_type, "type of output.weight").takes("TYPE");
    table.text("--token-embedding-type", o->embedding_type, "type of token_embd.weight").takes("TYPE");
    table.flag("--pure", o->pure, "the same type for all tensors, without the mix's exceptions");
    table.flag("--leave-output-tensor", o->leave_output, "output.weight stays as it is");
    table.flag("--allow-requantize", o->allow_requantize, "allow weights that are already quantized");
    table.choice(
        "--method", o->method,
        {{"standard", quantize::Method::Standard},
         {"absmax", quantize::Method::Absmax},
         {"search", quantize::Method::Search},
         {"imatrix", quantize::Method::Imatrix},
         {"awq", quantize::Method::Awq},
         {"gptq", quantize::Method::Gptq}},
        "how weights are rounded (above): standard: llama.cpp's bytes; absmax: no search; search: our own "
        "search; imatrix: llama.cpp's bytes with --imatrix; awq: scaled channels, and gptq: error feedback, "
        "both on the text of -f");
    table.numbers("--prune-layers", o->pruned, whole_numbers(0, 1 << 20),
                  "omit these layers, numbered from 0; later ones move up");
    table
        .list("--override-kv", o->overrides,
              "metadata of OUT: KEY=TYPE:VALUE, TYPE one of int, float, bool, str")
        .takes("KEY=TYPE:VALUE");
    const auto byte_count = [](std::optional<uint64_t> &value) {
        return [&value](const std::string &text) {
            value = static_cast<uint64_t>(byte_size(text, int64_t{1} << 50));
        };
    };
    TargetOptions &target = o->target;
    table.add("--target-size", "SIZE",
              "choose types for a size of OUT with all metadata: 4.2G, 800M (powers of 1024)",
              byte_count(target.size));
    table.add("--target-bpw", "N", "choose types for N bits per weight on average over all tensors",
              [&target](const std::string &text) {
                  target.bits_per_weight = number_in({.low = 0.1, .high = 32}, text);
              });
    table.add("--target-kl", "X",
              "choose types for the smallest OUT whose KL divergence from IN, measured on held-out text, is "
              "at most X",
              [&target](const std::string &text) {
                  target.divergence = number_in({.low = 1e-6, .high = 100}, text);
              });
    table.choice(
        "--cost", target.cost, {{"disk", quantize::Cost::Disk}, {"read", quantize::Cost::Read}},
        "what a target counts: bytes on disk, or bytes read per decoded token (routed experts by their "
        "share, one row of the token table)");
    table.text("--target-types", target.types, "choose among these types only, Q3_K,Q4_K,...; default: all")
        .takes("TYPE,...");
    table
        .text("-f,--file", target.text,
              "text on which awq and gptq are calibrated and a target's sensitivity is measured; -: standard "
              "input")
        .takes("FILE");
    table
        .text("--sensitivity", target.sensitivity,
              "keeps measured sensitivity: written with -f, otherwise read")
        .takes("FILE");
    table
        .text("--held-out", target.held_out,
              "another text, on which the choice is measured; default: chunks of -f that are not used "
              "otherwise")
        .takes("FILE");
    table.number("--rounds", target.rounds, whole_numbers(0, 16),
                 "with -f: measure again around the choice at most this often and keep what measures better");
    table.number("-c,--ctx-size", target.context, whole_numbers(16, 1 << 16), "with -f: tokens per chunk");
    table
        .add(
            "--chunks", "N",
            "with -f: number of chunks to choose on (half as many judge, or as many of --held-out); -1: all; "
            "with --method awq or gptq, 128 to calibrate on unless given",
            [&target](const std::string &text) {
                target.chunks = static_cast<int64_t>(number_in(whole_numbers(-1), text));
            })
        .by_default("16");
    table.flag("--report", target.report,
               "with a target: print the sensitivity of attention and feed-forward matrices");
    table.flag("--keep-split", o->keep_split, "write as many parts as IN has, named OUT-00001-of-0000N.gguf");
    table.flag("--dry-run", o->dry_run, "print the types and sizes, write nothing");
    table.flag("--json", o->json, "with --dry-run: as JSON");
    table.flag("--overwrite", o->overwrite, "replace OUT if it exists");
    table.in_group(Group::Device);
    table.number("-t,--threads", o->threads, whole_numbers(0, 4096), "CPU threads; 0: all cores");
    command.operands_now = [o = o.get()](size_t words) -> size_t {
        if (!o->target.is_given()) return 2;
        if (words > 2)
            throw UsageError(
                "TYPE and --target-size, --target-bpw or --target-kl exclude each other: omit one of them");
        return 1;
    };
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->source = words.model;
        o->destination = words.operands[0];
        if (words.operands.size() > 1) o->type = words.operands[1];
        const TargetOptions &asked = o->target;
        const bool saves = !asked.text.empty();
        confine({{o->source, o->importance, o->tensor_type_file, asked.text, asked.held_out,
                  saves ? "" : asked.sensitivity},
                 {o->dry_run ? "" : o->destination, saves ? asked.sensitivity : ""}},
                "cpu");
        return quantize_model(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
