// The options of `runnel quantize`.
#include <memory>

#include "engine/commands/cli/command.h"
#include "engine/commands/quantize/quantize.h"
#include "engine/commands/sandbox/sandbox_option.h"

namespace runnel::commands {

Command quantize_command() {
    Command command{
        .name = "quantize",
        .usage = "IN OUT TYPE",
        .summary = "a model file in another format",
        .description =
            "Writes the model IN to OUT with its weights as TYPE: one of llama.cpp's types or mixes (Q4_K_M, "
            "Q8_0, IQ4_XS, F16, ...), with the bytes that llama.cpp's own quantizer writes. OUT appears when "
            "it is complete.",
        .examples = {"quantize model-f16.gguf model-q4_k_m.gguf Q4_K_M",
                     "quantize model-f16.gguf small.gguf IQ2_M --imatrix model.imatrix",
                     "quantize model-f16.gguf x Q4_K_M --tensor-type ffn_down=Q6_K --dry-run"},
        .operands = 2};
    auto o = std::make_shared<QuantizeOptions>();
    OptionTable &table = command.options;
    table.in_group(Group::Output);
    table
        .text("--imatrix", o->importance,
              "importance of the columns; IQ1 and IQ2 types, IQ3_XXS and Q2_K_S need it")
        .takes("FILE");
    table
        .list("--tensor-type", o->tensor_types,
              "a type for tensors by name, PATTERN=TYPE; the first match counts")
        .takes("PATTERN=TYPE");
    table.text("--tensor-type-file", o->tensor_type_file, "more of them, a line each").takes("FILE");
    table.text("--output-tensor-type", o->output_type, "type of output.weight").takes("TYPE");
    table.text("--token-embedding-type", o->embedding_type, "type of token_embd.weight").takes("TYPE");
    table.flag("--pure", o->pure, "the same type for all tensors, without the mix's exceptions");
    table.flag("--leave-output-tensor", o->leave_output, "output.weight stays as it is");
    table.flag("--allow-requantize", o->allow_requantize, "allow weights that are already quantized");
    table.choice(
        "--method", o->method,
        {{"standard", quantize::Method::Standard}, {"search", quantize::Method::Search}},
        "standard: llama.cpp's bytes; search: our own search for Q2_K to Q6_K and IQ4, without --imatrix");
    table.numbers("--prune-layers", o->pruned, whole_numbers(0, 1 << 20),
                  "omit these layers, numbered from 0; later ones move up");
    table
        .list("--override-kv", o->overrides,
              "metadata of OUT: KEY=TYPE:VALUE, TYPE one of int, float, bool, str")
        .takes("KEY=TYPE:VALUE");
    table.flag("--keep-split", o->keep_split, "as many parts as IN has, named OUT-00001-of-0000N.gguf");
    table.flag("--dry-run", o->dry_run, "print the types and sizes, write nothing");
    table.flag("--json", o->json, "with --dry-run: as JSON");
    table.flag("--overwrite", o->overwrite, "replace OUT if it exists");
    table.in_group(Group::Device);
    table.number("-t,--threads", o->threads, whole_numbers(0, 4096), "CPU threads; 0: all cores");
    const Confine confine = add_sandbox_option(table);
    command.call = [o, confine](const Words &words, Io &io) {
        o->source = words.model;
        o->destination = words.operands[0];
        o->type = words.operands[1];
        confine({{o->source, o->importance, o->tensor_type_file}, {o->dry_run ? "" : o->destination}}, "cpu");
        return quantize_model(*o, io);
    };
    return command;
}

}  // namespace runnel::commands
