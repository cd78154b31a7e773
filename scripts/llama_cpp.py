# llama.cpp as PyPI's package xllamacpp holds it: its C functions, and its own translation of JSON schemas to GBNF (the
# package's json_schema_to_grammar() gives llguidance's form instead). Used by compare-masks and check-constrained.
import ctypes
import json
import os
import time

import xllamacpp


class ModelParams(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("devices", "buffer_types")] + \
        [(name, ctypes.c_int32) for name in ("gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")] + \
        [(name, ctypes.c_void_p) for name in ("tensor_split", "progress", "progress_data", "overrides")] + \
        [(name, ctypes.c_bool) for name in ("vocab_only", "check_tensors", "extra_buffers", "no_host", "no_alloc", "mtp")]


class TokenData(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class TokenArray(ctypes.Structure):
    _fields_ = [("data", ctypes.POINTER(TokenData)), ("size", ctypes.c_size_t), ("selected", ctypes.c_int64),
                ("sorted", ctypes.c_bool)]


def library():
    folder = os.path.dirname(xllamacpp.__file__)
    lib = ctypes.CDLL(os.path.join(folder, next(f for f in os.listdir(folder) if f.endswith(".so"))))
    lib.llama_model_default_params.restype = ModelParams
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
    for name in ("llama_model_load_from_file", "llama_model_get_vocab", "llama_sampler_init_grammar"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.llama_model_get_vocab.argtypes = lib.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
    lib.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32,
                                   ctypes.c_bool, ctypes.c_bool]
    lib.llama_sampler_init_grammar.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    lib.llama_sampler_apply.argtypes = [ctypes.c_void_p, ctypes.POINTER(TokenArray)]
    lib.llama_sampler_accept.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    lib._Z22llama_sampler_init_llgPK11llama_vocabPKcS3_.restype = ctypes.c_void_p
    return lib


def gbnf_of_schema(lib, schema):
    """The GBNF that llama.cpp makes of a schema, or None if it refuses it, and the CPU time in microseconds. These are
    C++ functions, called in a process of their own because a refusal is an exception that ends it. A string of the
    package is one pointer to its text, as before GCC 5."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        text, value, result = ctypes.c_void_p(), ctypes.create_string_buffer(1024), ctypes.c_void_p()
        allocator = ctypes.create_string_buffer(16)
        ctypes.CDLL("libstdc++.so.6")._ZNSsC1EPKcRKSaIcE(ctypes.byref(text), json.dumps(schema).encode(), allocator)
        start = time.thread_time_ns()
        lib._ZN11common_json5parseERKSs(value, ctypes.byref(text))
        lib._Z22json_schema_to_grammarRK11common_jsonb(ctypes.byref(result), value, ctypes.c_bool(True))
        microseconds = (time.thread_time_ns() - start) / 1e3
        with os.fdopen(write, "wb") as file:
            file.write(b"%f\n" % microseconds + ctypes.string_at(result.value))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        microseconds, _, grammar = file.read().partition(b"\n")
    return (grammar, float(microseconds)) if os.waitpid(child, 0)[1] == 0 else (None, 0.0)
