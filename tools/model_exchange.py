#!/usr/bin/env python3
"""Exchange of GPT-2 and Llama models with transformers, in both directions.

usage: tools/model_exchange.py make [--out tests/fixtures]     tiny random models with their logits, for tests/gpt: gpt2, llama (grouped heads, untied)
                                                               and llama_tied (tied, biases, another epsilon and base of RoPE)
       tools/model_exchange.py check RIDGE MODEL [MODEL …]     `RIDGE export` writes each model, transformers loads it, and the loss on a text is compared
                                                               with `RIDGE eval`
       tools/model_exchange.py live RIDGE                      the same for random Llamas of many shapes that transformers writes, `RIDGE eval` reads and
                                                               `RIDGE export` writes again: losses, and every tensor bit for bit

Needs torch, transformers and numpy. The committed files were made with transformers 5.22 and torch 2.13; the output is reproducible byte for byte.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

CHARACTERS = "\n !abcdefghijklmnopqrstuvwxyz"


def write(model, out, positions):
    """The model with a character tokenizer, and its logits for some tokens, computed in f64."""
    with torch.no_grad():
        for name, p in model.named_parameters():  # otherwise biases and norms would be zeros and ones
            if p.dim() == 1:
                p.add_(torch.randn(p.shape) * 0.2)
        tokens = torch.randint(0, model.config.vocab_size, (1, positions))
        logits = model.double()(tokens).logits
    out.mkdir(parents=True, exist_ok=True)
    model.float().save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    write_tokenizer(out)
    np.save(out / "tokens.npy", tokens[0].numpy())
    np.save(out / "logits.npy", logits[0].float().numpy())


def write_tokenizer(out):
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
                 "post_processor": None, "decoder": {"type": "Fuse"},
                 "model": {"type": "WordLevel", "vocab": {c: i for i, c in enumerate(CHARACTERS)}, "unk_token": "<unk>"}}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1) + "\n")


def llama(**changes):
    sizes = dict(vocab_size=len(CHARACTERS), max_position_embeddings=16, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, initializer_range=0.2, bos_token_id=None, eos_token_id=None, rms_norm_eps=1e-5, use_cache=False)
    return LlamaForCausalLM(LlamaConfig(**(sizes | changes))).eval()


def make(fixtures):
    torch.manual_seed(20)
    config = GPT2Config(vocab_size=len(CHARACTERS), n_positions=16, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
                        initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    write(GPT2LMHeadModel(config).eval(), fixtures / "gpt2", 16)
    torch.manual_seed(21)
    write(llama(), fixtures / "llama", 16)
    torch.manual_seed(22)
    write(llama(tie_word_embeddings=True, num_key_value_heads=4, attention_bias=True, mlp_bias=True, rms_norm_eps=1e-6, intermediate_size=50,
                rope_parameters={"rope_type": "default", "rope_theta": 500000.0}), fixtures / "llama_tied", 16)


def positions_of(config):
    return config["n_positions"] if config["model_type"] == "gpt2" else config["max_position_embeddings"]


def text_loss(folder, tokens, block):
    """Mean loss over windows of the block, as in ridge eval."""
    model = AutoModelForCausalLM.from_pretrained(folder).double().eval()
    total = count = 0
    with torch.no_grad():
        for first in range(0, len(tokens) - block, block):
            window = torch.tensor(tokens[first:first + block + 1])
            logits = model(window[None, :-1]).logits[0]
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
            count += block
    return total / count


def same_loss(ridge, name, folder, model):
    """For a folder that both can read."""
    config = json.loads((model / "config.json").read_text())
    # Token files in nanoGPT's format: the model's own text does not matter, only that both read the same tokens.
    tokens = np.random.default_rng(3).integers(0, config["vocab_size"], 40 * positions_of(config) + 1).astype(np.uint16)
    (folder / "data").mkdir(exist_ok=True)
    tokens.tofile(folder / "data/train.bin")
    tokens.tofile(folder / "data/val.bin")
    line = subprocess.run([ridge, "eval", model, f"data={folder / 'data'}", "--json"], check=True, capture_output=True, text=True).stdout
    ours, theirs = json.loads(line)["loss"], text_loss(model, tokens.astype(np.int64), positions_of(config))
    good = abs(ours - theirs) <= 2e-6 * abs(theirs) + 1e-6
    print(f"{name} ({config['model_type']}): loss {ours:.7f} by ridge, {theirs:.7f} by transformers: {'same' if good else 'DIFFERENT'}")
    return good


def check(ridge, model):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([ridge, "export", model, "--out", folder / "model"], check=True, stdout=subprocess.DEVNULL)
        if json.loads((folder / "model/config.json").read_text())["model_type"] not in ("gpt2", "llama"):
            print(f"{model}: not expressible as a GPT-2 or a Llama")
            return True
        return same_loss(ridge, model, folder, folder / "model")


def live(ridge):
    """Llamas of many shapes, in both directions."""
    shapes = {"grouped heads": {}, "one key head": dict(num_key_value_heads=1), "tied": dict(tie_word_embeddings=True), "all key heads": dict(num_key_value_heads=4),
              "default epsilon": dict(rms_norm_eps=1e-6), "base 500000": dict(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
              "biases": dict(attention_bias=True, mlp_bias=True), "wide": dict(hidden_size=96, num_attention_heads=6, num_key_value_heads=3, intermediate_size=256),
              "deep": dict(num_hidden_layers=5, max_position_embeddings=64)}
    good = True
    for seed, (name, changes) in enumerate(shapes.items()):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            torch.manual_seed(seed)
            model = llama(**changes)
            model.save_pretrained(folder / "theirs")
            write_tokenizer(folder / "theirs")
            good &= same_loss(ridge, name, folder, folder / "theirs")
            subprocess.run([ridge, "export", folder / "theirs", "--out", folder / "ours"], check=True, stdout=subprocess.DEVNULL)
            good &= same_loss(ridge, name + ", exported", folder, folder / "ours")
            a, b = load_file(folder / "theirs/model.safetensors"), load_file(folder / "ours/model.safetensors")
            tokens = torch.arange(model.config.max_position_embeddings)[None] % model.config.vocab_size
            with torch.no_grad():
                logits = AutoModelForCausalLM.from_pretrained(folder / "ours")(tokens).logits - model(tokens).logits
            same = a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
            print(f"{name}: {len(a)} tensors {'bit for bit the same' if same else 'DIFFER'}, largest difference of logits {logits.abs().max():.1e}")
            good &= same and bool(logits.abs().max() <= 1e-4)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests/fixtures")
    checking = commands.add_parser("check")
    checking.add_argument("ridge")
    checking.add_argument("model", nargs="+")
    commands.add_parser("live").add_argument("ridge")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.out)
        return 0
    if arguments.command == "live":
        return 0 if live(arguments.ridge) else 1
    return 0 if all([check(arguments.ridge, m) for m in arguments.model]) else 1


if __name__ == "__main__":
    sys.exit(main())
