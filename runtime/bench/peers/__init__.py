"""Other programs that run the same model, one file each, found by name.

Each file runs in a child process, which may be another interpreter without spec-edge: it imports the standard library
at its top and its own program inside its functions, and nothing of spec-edge. It has

PACKAGE     the module whose absence means "not installed"; BESIDE, where there is one: others that it needs and does
            not bring; PIP: what installs them
METHODS     what it measures; PRECISIONS: forms of the weights it can take, those of DEFAULTS unless others are named
NEEDS       "gguf" or "hf" by precision: the form of the source weights
version()                                             of the program, as text
settings(method)                                      how it is called, for the report
convert(source, folder, precision)                    writes its own form of the weights; absent where it has none
open_model(model, draft, threads, precision, methods) opens what `convert` wrote, or else the source
generate(state, method, ids, new_tokens)              (tokens, [(seconds since the call, tokens that came then)],
                                                      verify steps after prefill or None); end of sequence is ignored
logits(state, ids)                                    float32 [len(ids), V]; None where the program gives none
"""
