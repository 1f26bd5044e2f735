#!/usr/bin/env python3
"""Trains GPT-2 with Ridge and with PyTorch from the same weights on the same tokens, and compares the losses.

  tools/gpt2_loss_parity.py RIDGE [--work FOLDER] [--steps 200] [--batch 32] [--preset gpt2] [--device cuda] [key=value …]

Ridge draws the initial weights, writes them as safetensors, and writes the batches that its training will use (ridge data batches). Ridge trains in
bf16 with AdamW, clipping and the start of GPT-2's usual schedule (700 steps up to 6e-4); PyTorch, with autocast to bf16, loads the weights and does
the same. The script prints both losses, and the differences over the second half of the steps: the mean must be at most 0.01, and none may exceed
0.05. Needs only torch.
"""
import argparse
import array
import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

SIZES = {"gpt2": (12, 12, 768, 1024), "gpt2-medium": (24, 16, 1024, 1024), "shakespeare-char": (6, 6, 384, 256), "tiny": (4, 4, 128, 64)}
MEAN, MOST = 0.01, 0.05


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def write_tokens(folder, count, vocab):
    """Text of an artificial language, as 2-byte tokens: each word is usually followed by one of a few others, so that there is something to learn."""
    draw = random.Random(7)
    words = min(vocab, 8192)
    heirs = [[min(int(words * draw.random() ** 3), words - 1) for _ in range(6)] for _ in range(words)]
    for name, length in (("train.bin", count), ("val.bin", count // 10)):
        token, out = 0, array.array("H")
        for _ in range(length):
            token = heirs[token][min(int(6 * draw.random() ** 2), 5)] if draw.random() < 0.9 else draw.randrange(words)
            out.append(token)
        (folder / name).write_bytes(out.tobytes())


def load_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + x for x in entry["data_offsets"])
        tensors[name.removeprefix("transformer.")] = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).reshape(entry["shape"]).clone()
    return tensors


def forward(p, x, y, layers, heads):
    """GPT-2's layout: weights of linear layers are stored as [in, out]."""
    width = p["wte.weight"].shape[1]
    h = p["wte.weight"][x] + p["wpe.weight"][: x.shape[1]]
    for i in range(layers):
        g = lambda name: p[f"h.{i}.{name}"]
        b, t, _ = h.shape
        qkv = F.linear(F.layer_norm(h, (width,), g("ln_1.weight"), g("ln_1.bias")), g("attn.c_attn.weight").t(), g("attn.c_attn.bias"))
        q, k, v = (z.view(b, t, heads, width // heads).transpose(1, 2) for z in qkv.split(width, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, width)
        h = h + F.linear(a, g("attn.c_proj.weight").t(), g("attn.c_proj.bias"))
        m = F.gelu(F.linear(F.layer_norm(h, (width,), g("ln_2.weight"), g("ln_2.bias")), g("mlp.c_fc.weight").t(), g("mlp.c_fc.bias")), approximate="tanh")
        h = h + F.linear(m, g("mlp.c_proj.weight").t(), g("mlp.c_proj.bias"))
    h = F.layer_norm(h, (width,), p["ln_f.weight"], p["ln_f.bias"])
    logits = F.linear(h, p["wte.weight"])
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), y.reshape(-1))


def torch_losses(weights, batches, layers, heads, rates, device, bf16, block, batch):
    p = {name: t.to(device).requires_grad_() for name, t in weights.items()}
    decay, rest = [t for t in p.values() if t.dim() > 1], [t for t in p.values() if t.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    data = torch.frombuffer(bytearray(pathlib.Path(batches).read_bytes()), dtype=torch.int32).view(-1, 2, batch, block)
    for step, rate in enumerate(rates):
        x, y = (z.long().to(device) for z in data[step])
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            loss = forward(p, x, y, layers, heads)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
    return [float(x) for x in losses]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__.split("\n", 1)[1], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ridge")
    parser.add_argument("settings", nargs="*", help="of Ridge's training besides, as memory=8GiB")
    parser.add_argument("--work", help="a folder for weights, tokens and runs; else a temporary one")
    parser.add_argument("--preset", default="gpt2", choices=sorted(SIZES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp32"))
    options = parser.parse_intermixed_args()
    keep = None if options.work else tempfile.TemporaryDirectory()
    work = pathlib.Path(options.work or keep.name)
    work.mkdir(parents=True, exist_ok=True)
    layers, heads, _, block = SIZES[options.preset]
    tokens = work / "tokens"
    if not tokens.exists():
        tokens.mkdir()
        write_tokens(tokens, max(400_000, 40 * block), 50257)
    common = [f"preset={options.preset}", f"batch={options.batch}", "bias=true", "dropout=0", "seed=1", "beta2=0.95", f"data={tokens}", f"device={options.device}"]
    quiet = ["checkpoint_interval=100000", "eval_interval=none", "sample_interval=none"]
    first, second, start = work / "first", work / "second", work / "start"
    times = {}

    def timed(what, command):
        begin = time.perf_counter()
        out = run([options.ridge, *map(str, command)])
        times[what] = time.perf_counter() - begin
        return out

    # The checkpoint before the first step contains the initial weights.
    timed("start", ["train", "gpt", *common, *quiet, "steps=1", f"out={first}", *options.settings])
    timed("export", ["export", min((first / "checkpoints").glob("step_*")), "--out", start])
    timed("batches", ["data", "batches", tokens, "--out", work / "batches.bin", "--batches", options.steps, *common[:2], "seed=1"])
    timed("train", ["train", "gpt", *common, *quiet, f"steps={options.steps}", "warmup=700", "lr=6e-4", "min_lr=6e-5", f"init_from={start}", f"precision={options.precision}",
                    f"out={second}", "no_fallback=true", *options.settings])
    rows = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    rows = [r for r in rows if "lr" in r]
    ridge, rates = [r["loss"] for r in rows], [r["lr"] for r in rows]
    torch.set_float32_matmul_precision("highest")
    weights = load_safetensors(start / "model.safetensors")
    rival = torch_losses(weights, work / "batches.bin", layers, heads, rates, "cpu" if options.device == "cpu" else "cuda", options.precision == "bf16", block, options.batch)
    differences = [abs(a - b) for a, b in zip(ridge, rival)]
    for i in sorted({0, 1, 2, 5, 10, 20, 50, 100, 150, len(ridge) - 1}):
        if i < len(ridge):
            print(f"step {i + 1:>4}: Ridge {ridge[i]:.4f}  PyTorch {rival[i]:.4f}  difference {ridge[i] - rival[i]:+.4f}")
    half = differences[len(differences) // 2:]
    mean, most = sum(half) / len(half), max(differences)
    good = len(ridge) == options.steps and math.isfinite(mean) and mean <= MEAN and most <= MOST
    print(json.dumps({"preset": options.preset, "precision": options.precision, "steps": len(ridge), "mean_difference": round(mean, 5), "largest_difference": round(most, 5),
                      "allowed_mean": MEAN, "allowed_largest": MOST, "final_ridge": round(ridge[-1], 4), "final_torch": round(rival[-1], 4),
                      "seconds": {k: round(v, 1) for k, v in times.items()}, "same": good}))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
