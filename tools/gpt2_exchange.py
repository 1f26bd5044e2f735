#!/usr/bin/env python3
"""Exchange of GPT-2 models with transformers, in both directions.

usage: tools/gpt2_exchange.py make [--out tests/fixtures/gpt2]    a tiny random GPT2LMHeadModel with its logits, for tests/gpt
       tools/gpt2_exchange.py check RIDGE MODEL [MODEL …]         `RIDGE export` writes each model, transformers loads it, and the loss on
                                                                  a text is compared with `RIDGE eval`

Needs torch, transformers and numpy. transformers 5.22 and torch 2.13 made the committed files; running it twice writes the same bytes.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def make(out):
    torch.manual_seed(20)
    config = GPT2Config(vocab_size=29, n_positions=16, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0,
                        initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():  # biases and norms would else be zeros and ones
            if p.dim() == 1:
                p.add_(torch.randn(p.shape) * 0.2)
        tokens = torch.randint(0, config.vocab_size, (1, config.n_positions))
        logits = model.double()(tokens).logits
    out.mkdir(parents=True, exist_ok=True)
    model.float().save_pretrained(out)
    (out / "generation_config.json").unlink(missing_ok=True)
    characters = "\n !abcdefghijklmnopqrstuvwxyz"
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
                 "post_processor": None, "decoder": {"type": "Fuse"},
                 "model": {"type": "WordLevel", "vocab": {c: i for i, c in enumerate(characters)}, "unk_token": "<unk>"}}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1) + "\n")
    np.save(out / "tokens.npy", tokens[0].numpy())
    np.save(out / "logits.npy", logits[0].float().numpy())


def text_loss(folder, tokens, block):
    """Mean loss over windows of the block, as ridge eval has them."""
    model = GPT2LMHeadModel.from_pretrained(folder).double().eval()
    total = count = 0
    with torch.no_grad():
        for first in range(0, len(tokens) - block, block):
            window = torch.tensor(tokens[first:first + block + 1])
            logits = model(window[None, :-1]).logits[0]
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
            count += block
    return total / count


def check(ridge, model):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([ridge, "export", model, "--out", folder / "model"], check=True, stdout=subprocess.DEVNULL)
        config = json.loads((folder / "model/config.json").read_text())
        if config["model_type"] != "gpt2":
            print(f"{model}: not expressible as a GPT-2")
            return True
        # Token files as nanoGPT's: the model's own text does not matter, only that both read the same tokens.
        tokens = np.random.default_rng(3).integers(0, config["vocab_size"], 40 * config["n_positions"] + 1).astype(np.uint16)
        (folder / "data").mkdir()
        tokens.tofile(folder / "data/train.bin")
        tokens.tofile(folder / "data/val.bin")
        line = subprocess.run([ridge, "eval", folder / "model", f"data={folder / 'data'}", "--json"], check=True, capture_output=True, text=True).stdout
        ours, theirs = json.loads(line)["loss"], text_loss(folder / "model", tokens.astype(np.int64), config["n_positions"])
        good = abs(ours - theirs) <= 2e-6 * abs(theirs) + 1e-6
        print(f"{model}: loss {ours:.7f} by ridge, {theirs:.7f} by transformers: {'same' if good else 'DIFFERENT'}")
        return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make").add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/fixtures/gpt2"))
    checking = commands.add_parser("check")
    checking.add_argument("ridge")
    checking.add_argument("model", nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.out)
        return 0
    return 0 if all([check(arguments.ridge, m) for m in arguments.model]) else 1


if __name__ == "__main__":
    sys.exit(main())
