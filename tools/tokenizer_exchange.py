#!/usr/bin/env python3
"""Exchange of tokenizers with Hugging Face's tokenizers and transformers, in both directions.

usage: tools/tokenizer_exchange.py make [--out tests/fixtures]   tokenizer: a byte-level BPE that it learns, and how it encodes odd texts; gpt2_tokenizer:
                                                                 the same vocabulary in GPT-2's form, as vocab.json with merges.txt and as tokenizer.json
       tools/tokenizer_exchange.py check RIDGE                   `RIDGE data prepare` tokenises texts with each tokenizer, and tokenizers loads what it
                                                                 stored and gives the same tokens; so does AutoTokenizer with what `RIDGE export` writes

Needs tokenizers and transformers; the committed files were made with 0.23.3 and 5.22, and the output is reproducible byte for byte.
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as Decoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, GPT2Tokenizer

WORDS = "the a cat cats sat on mat mats don't it's we'll they've naïve café Привет мир 你好 世界 12 345 6789 x_y foo(bar) end. Yes! No? über straße ½ ²".split()
BLANKS = [" ", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\u00a0", " \n "]
ODD = ["", " ", "\n", "a", "the cat", " the cat ", "don't can't won't I'm you're he'd we'll they've it's", "''' 's 'S '", "   three   blanks   ", "tabs\t\tand\n\nlines\n",
       "naïve café Привет, мир! 你好 世界。", "12345 3.14 1,000 ½ ² ⅷ", "e\u0301 \u200b zero\u3000wide", "🙂🙂 ok 👍🏽", "x_y = foo(bar)[3]; // §", "<|endoftext|>",
       "one<|endoftext|>two<|endoftext|><|endoftext|>three ", "<|endoftext|", "\x00\x01\x7f\x1c", "ſ ﬁ Ǆ ß", "\r\n windows \r\n", "a" * 300, "the" * 100, "\u00ad\u2028\ufeff"]


def text_of(count):
    """Words from a formula, so that no file is needed."""
    out, state = [], 12345
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(WORDS[(state >> 8) * (state >> 20) % len(WORDS)] + BLANKS[(state >> 14) % len(BLANKS)])
    return "".join(out)


def make(fixtures):
    out = fixtures / "tokenizer"
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), Decoder()
    trainer = BpeTrainer(vocab_size=360, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    tokenizer.train_from_iterator([text_of(4000)], trainer)
    tokenizer.save(str(out / "tokenizer.json"))
    rows = [{"text": text, "ids": tokenizer.encode(text).ids} for text in ODD + [text_of(60), text_of(200)[37:]]]
    (out / "encodings.json").write_text(json.dumps(rows, ensure_ascii=True) + "\n")


    make_gpt2_form(fixtures / "gpt2_tokenizer", json.loads((out / "tokenizer.json").read_text()))


def make_gpt2_form(out, learnt):
    """Like GPT-2's files on the hub: end of text last, no model type, merges as lines."""
    out.mkdir(parents=True, exist_ok=True)
    words = [w for w, _ in sorted(learnt["model"]["vocab"].items(), key=lambda item: item[1]) if w != "<|endoftext|>"] + ["<|endoftext|>"]
    vocab = {w: i for i, w in enumerate(words)}
    merges = [m if isinstance(m, str) else " ".join(m) for m in learnt["model"]["merges"]]
    (out / "vocab.json").write_text(json.dumps(vocab))
    (out / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    end = {"id": vocab["<|endoftext|>"], "special": True, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    document = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
                "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
                "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
                "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
                "model": {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab,
                          "merges": merges}}
    (out / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = GPT2Tokenizer(vocab=str(out / "vocab.json"), merges=str(out / "merges.txt"))
    same = Tokenizer.from_file(str(out / "tokenizer.json"))
    rows = [{"text": text, "ids": tokenizer.encode(text)} for text in ODD + [text_of(60)]]
    for row in rows:
        if same.encode(row["text"]).ids != row["ids"]:
            sys.exit(f"the two forms differ on {row['text']!r}")
    (out / "encodings.json").write_text(json.dumps(rows, ensure_ascii=True) + "\n")


def check_export(ridge, folder, kind, text, ids):
    """Exports a model with this tokenizer: AutoTokenizer must reproduce the tokens that it was trained on, and its text."""
    small = ["layers=1", "heads=1", "width=16", "block=16", "batch=2", "steps=1", "sample_interval=none", "threads=1"]
    tokens, run = pathlib.Path(folder, "tokens"), pathlib.Path(folder, "run")
    subprocess.run([ridge, "train", "gpt", f"data={tokens}", *small, "--out", run], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([ridge, "export", run, "--out", pathlib.Path(folder, "model")], check=True, stdout=subprocess.DEVNULL)
    theirs = AutoTokenizer.from_pretrained(pathlib.Path(folder, "model"))
    theirs.model_max_length = 10**9  # avoids a warning: the text is longer than the block
    same = theirs.encode(text)
    if theirs.decode(same) != text:
        sys.exit(f"{kind}: AutoTokenizer changes the text: {theirs.decode(same)[:60]!r}")
    if same != ids:
        sys.exit(f"{kind}: AutoTokenizer gives other tokens than tokenizers")
    print(f"{kind}: AutoTokenizer ({type(theirs).__name__}) of the exported model gives the same {len(same)} tokens and the same text")


def check(ridge):
    text = text_of(3000) + "".join(t for t in ODD if "<|" not in t)
    for kind in ["bpe", "byte", "char"]:
        with tempfile.TemporaryDirectory() as folder:
            source, out = pathlib.Path(folder, "text.txt"), pathlib.Path(folder, "tokens")
            source.write_bytes(text.encode())
            vocab = ["vocab=400"] if kind == "bpe" else []
            subprocess.run([ridge, "data", "prepare", source, f"tokenizer={kind}", *vocab, "--out", out], check=True, stdout=subprocess.DEVNULL)
            theirs = Tokenizer.from_file(str(out / "tokenizer.json"))
            width, form = (2, "H") if theirs.get_vocab_size() > 256 else (1, "B")
            ids = []
            for part in ["train", "validation"]:
                for shard in sorted(out.glob(f"{part}_*.bin")):
                    data = shard.read_bytes()
                    ids += struct.unpack(f"<{len(data) // width}{form}", data)
            same = theirs.encode(text).ids
            equal = theirs.decode(ids, skip_special_tokens=False).removesuffix("<|endoftext|>") == text
            print(f"{kind}: {len(ids)} tokens by ridge, {len(same)} by tokenizers, decoded text {'equal' if equal else 'DIFFERS'}")
            if not equal:
                sys.exit(f"{kind}: the tokens are not those of the text")
            # The split between training and validation may cut a word; everything before it must agree.
            first = next((i for i, (a, b) in enumerate(zip(ids, same)) if a != b), min(len(ids), len(same)))
            if first < 0.85 * len(ids):
                sys.exit(f"{kind}: tokens differ from place {first} on: {ids[first:first + 9]} and {same[first:first + 9]}")
            check_export(ridge, folder, kind, text, same)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("what", choices=["make", "check"])
parser.add_argument("ridge", nargs="?")
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests/fixtures")
arguments = parser.parse_args()
if arguments.what == "make":
    make(arguments.out)
else:
    check(arguments.ridge)
