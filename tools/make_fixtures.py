#!/usr/bin/env python3
"""Makes the fixtures of tests/parity: PyTorch's results for small models and ops.

usage: tools/make_fixtures.py [--out tests/fixtures] [--only NAME]

Needs only torch (the committed files were made with 2.13) and numpy. Inputs are drawn in f32 from a generator seeded by the
fixture's name; everything else is computed in f64 and rounded to f32 once, so a fixture's own error is half a unit in the
last place. The output is reproducible byte for byte. One folder per fixture; the parameters of a model are stored in one
flat file, in the order of gpt_parameters (src/nn/gpt.h) or of the lists below.
"""
import argparse
import math
import pathlib
import zlib

import numpy as np
import torch
import torch.nn.functional as F


class Fixture:
    """One folder of arrays, with its own random generator for inputs."""

    def __init__(self, out, name):
        self.folder = out / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def save(self, name, value):
        value = torch.as_tensor(value).detach()
        if value.dtype == torch.bool:
            value = value.to(torch.int64)
        array = value.contiguous().numpy()
        np.save(self.folder / f"{name}.npy", array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64))

    def normal(self, *shape, scale=1.0):
        """f64 tensor whose values are exactly representable in f32."""
        return (torch.randn(*shape, generator=self.generator) * scale).double()

    def integers(self, high, *shape):
        return torch.randint(high, shape, generator=self.generator)


def leaf(x):
    return x.clone().requires_grad_(True)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


# A GPT written as functions. Parameters are a dict in creation order.


def gpt_parameters(fixture, c):
    p = {}
    dim, hidden = c["width"] // c["heads"], c["hidden"]

    def norm(name):
        p[name + ".weight"] = 1 + fixture.normal(c["width"], scale=0.1)
        if c["bias"] and c["norm"] == "layer":
            p[name + ".bias"] = fixture.normal(c["width"], scale=0.1)

    def linear(name, to, given):
        p[name + ".weight"] = fixture.normal(to, given, scale=0.15)
        if c["bias"]:
            p[name + ".bias"] = fixture.normal(to, scale=0.1)

    p["wte"] = fixture.normal(c["vocab"], c["width"], scale=0.3)
    if c["position"] == "learned":
        p["wpe"] = fixture.normal(c["block"], c["width"], scale=0.3)
    for i in range(c["layers"]):
        norm(f"{i}.ln_1")
        linear(f"{i}.c_attn", (c["heads"] + 2 * c["kv_heads"]) * dim, c["width"])
        linear(f"{i}.c_proj", c["width"], c["width"])
        norm(f"{i}.ln_2")
        linear(f"{i}.c_fc", hidden if c["mlp"] == "gelu" else 2 * hidden, c["width"])
        linear(f"{i}.mlp_proj", c["width"], hidden)
    norm("ln_f")
    if not c["tied"]:
        p["lm_head"] = fixture.normal(c["vocab"], c["width"], scale=0.3)
    return {name: value.float().double() for name, value in p.items()}


def rope(x):
    dim, time = x.shape[-1], x.shape[-2]
    angle = torch.arange(time).double()[:, None] * 10000.0 ** (-2 * torch.arange(dim // 2).double() / dim)
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def gpt_forward(p, c, tokens):
    batch, time = tokens.shape
    dim = c["width"] // c["heads"]

    def norm(x, name):
        if c["norm"] == "rms":
            return F.rms_norm(x, (c["width"],), p[name + ".weight"], 1e-5)
        return F.layer_norm(x, (c["width"],), p[name + ".weight"], p.get(name + ".bias"), 1e-5)

    def linear(x, name):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    x = p["wte"][tokens]
    if c["position"] == "learned":
        x = x + p["wpe"][:time]
    for i in range(c["layers"]):
        sizes = [c["heads"] * dim, c["kv_heads"] * dim, c["kv_heads"] * dim]
        q, k, v = (t.view(batch, time, -1, dim).transpose(1, 2) for t in linear(norm(x, f"{i}.ln_1"), f"{i}.c_attn").split(sizes, -1))
        if c["position"] == "rope":
            q, k = rope(q), rope(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + linear(y.transpose(1, 2).reshape(batch, time, c["width"]), f"{i}.c_proj")
        h = linear(norm(x, f"{i}.ln_2"), f"{i}.c_fc")
        if c["mlp"] == "gelu":
            h = F.gelu(h, approximate="tanh")
        else:
            h = F.silu(h[..., : c["hidden"]]) * h[..., c["hidden"] :]
        x = x + linear(h, f"{i}.mlp_proj")
    return F.linear(norm(x, "ln_f"), p["wte"] if c["tied"] else p["lm_head"])


GPT = dict(vocab=37, block=16, layers=2, heads=4, kv_heads=4, width=32, hidden=128, bias=False, norm="layer", position="learned", mlp="gelu", tied=True)


def make_gpt(fixture, steps, **changes):
    """Initial logits, loss and gradients; then AdamW steps with a schedule, clipping, and weight decay for matrices only."""
    c = {**GPT, **changes}
    batch, time = 3, c["block"]
    tokens, targets = fixture.integers(c["vocab"], max(steps, 1), batch, time), fixture.integers(c["vocab"], max(steps, 1), batch, time)
    p = {name: leaf(value) for name, value in gpt_parameters(fixture, c).items()}
    fixture.save("tokens", tokens)
    fixture.save("targets", targets)
    fixture.save("parameters", flat(p.values()))

    def loss_of(logits, i):
        return F.cross_entropy(logits.reshape(-1, c["vocab"]), targets[i].reshape(-1))

    logits = gpt_forward(p, c, tokens[0])
    loss = loss_of(logits, 0)
    fixture.save("logits", logits)
    fixture.save("loss", loss)
    fixture.save("gradients", flat(torch.autograd.grad(loss, list(p.values()))))
    if not steps:
        return
    groups = [
        {"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": 0.1},
        {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False)
    rates = (1e-3 * torch.minimum((torch.arange(steps) + 1) / 3.0, 0.5 * (1 + torch.cos(math.pi * torch.arange(steps) / steps)))).float()
    losses, norms = [], []
    for i in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = float(rates[i])
        optimizer.zero_grad()
        loss = loss_of(gpt_forward(p, c, tokens[i]), i)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0))
        optimizer.step()
        losses.append(loss.detach())
    fixture.save("rates", rates)
    fixture.save("losses", torch.stack(losses))
    fixture.save("norms", torch.stack(norms))
    fixture.save("parameters_end", flat(p.values()))


def drawn(stream, count):
    """Numbers below 2^32 that are easy to reproduce in any language; tests/parity/run_test.cpp generates the same."""
    x = np.arange(count, dtype=np.uint64) * 2654435761 + np.uint64(stream) * 2246822519 + 12345 & 0xFFFFFFFF
    x = (x ^ (x >> 16)) * 2246822519 & 0xFFFFFFFF
    x = (x ^ (x >> 13)) * 3266489917 & 0xFFFFFFFF
    return x ^ (x >> 16)


def drawn_tokens(step, batch, time, vocab):
    """Each token follows from the previous one, except for one in eight: something to learn."""
    draws = drawn(1000 + step, batch * (time + 1)).astype(np.int64).reshape(batch, time + 1)
    rows = np.zeros((batch, time + 1), np.int64)
    rows[:, 0] = draws[:, 0] % vocab
    for t in range(1, time + 1):
        rows[:, t] = np.where(draws[:, t] % 8 == 0, draws[:, t] // 8 % vocab, (3 * rows[:, t - 1] + 7) % vocab)
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def make_gpt_run(fixture):
    """A hundred training steps. Weights and batches come from a formula, so that only the expected results are stored."""
    c = {**GPT, "vocab": 65, "layers": 4}
    steps, batch, warmup, high, low = 100, 4, 10, 3e-3, 3e-4
    rates = [high * (i + 1) / warmup if i < warmup else low + 0.5 * (high - low) * (1 + math.cos(math.pi * (i - warmup) / (steps - warmup))) for i in range(steps)]
    rates = np.array(rates, np.float32)
    fixture.save("rates", torch.from_numpy(rates))
    for suffix, dtype in (("", torch.float64), ("_f32", torch.float32)):
        p = gpt_parameters(fixture, c)
        for index, (name, value) in enumerate(p.items()):
            if value.dim() == 1:
                p[name] = leaf(torch.ones_like(value, dtype=dtype))
            else:
                draws = (drawn(index, value.numel()) >> 8).astype(np.float64) / 2**24 - 0.5  # exact in f32
                p[name] = leaf(torch.from_numpy(draws * 0.25).to(dtype).reshape(value.shape))
        groups = [
            {"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": 0.1},
            {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.99), eps=1e-8, foreach=False, fused=False)
        losses, norms = [], []
        for i in range(steps):
            tokens, targets = drawn_tokens(i, batch, c["block"], c["vocab"])
            for group in optimizer.param_groups:
                group["lr"] = float(rates[i])
            optimizer.zero_grad()
            loss = F.cross_entropy(gpt_forward(p, c, tokens).reshape(-1, c["vocab"]), targets.reshape(-1))
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0))
            optimizer.step()
            losses.append(loss.detach())
        fixture.save("losses" + suffix, torch.stack(losses))
        if dtype == torch.float64:
            fixture.save("norms", torch.stack(norms))
            fixture.save("lengths_end", torch.stack([t.detach().norm() for t in p.values()]))


def make_conv_net(f):
    x, target = f.normal(4, 3, 13, 10), f.integers(5, 4)
    shapes = [(8, 3, 3, 3), (8,), (12, 4, 3, 3), (12,), (5, 72), (5,)]
    p = [leaf(f.normal(*s, scale=0.3)) for s in shapes]
    h = F.conv2d(x, p[0], p[1], stride=(2, 1), padding=1).relu()
    h = F.max_pool2d(h, 3, stride=2, padding=1)
    h = F.conv2d(h, p[2], p[3], padding=1, groups=2).relu()
    h = F.avg_pool2d(h, 3, stride=2, padding=1)
    logits = F.linear(h.flatten(1), p[4], p[5])
    loss = F.cross_entropy(logits, target)
    for name, value in dict(x=x, target=target, parameters=flat(p), logits=logits, loss=loss, gradients=flat(torch.autograd.grad(loss, p))).items():
        f.save(name, value)


def make_conv1d(f):
    """Stride, dilation and padding that leave part of the input unread."""
    x, w = leaf(f.normal(2, 4, 23)), leaf(f.normal(6, 2, 3))
    y = F.conv1d(x, w, stride=2, padding=3, dilation=3, groups=2)
    d = f.normal(*y.shape)
    for name, value in zip(("x", "w", "y", "d", "dx", "dw"), (x, w, y, d, *torch.autograd.grad((y * d).sum(), (x, w)))):
        f.save(name, value)


def make_norms(f):
    for shape in ((5, 7, 33), (3, 1), (4, 131), (6, 3)):
        tag = "x".join(map(str, shape))
        x, w, b, d = leaf((f.normal(*shape, scale=2) + 0.5).float().double()), leaf(f.normal(shape[-1])), leaf(f.normal(shape[-1])), f.normal(*shape)
        y = F.layer_norm(x, shape[-1:], w, b, 1e-5)
        dx, dw, db = torch.autograd.grad((y * d).sum(), (x, w, b))
        z = F.rms_norm(x, shape[-1:], w, 1e-5)
        rx, rw = torch.autograd.grad((z * d).sum(), (x, w))
        values = dict(x=x, w=w, b=b, d=d, layer=y, layer_dx=dx, layer_dw=dw, layer_db=db, rms=z, rms_dx=rx, rms_dw=rw)
        for name, value in values.items():
            f.save(f"{tag}.{name}", value)


ATTENTION = dict(  # batch, heads, kv heads, queries, keys, dim, causal, mask
    plain=(2, 3, 3, 7, 7, 8, False, None),
    causal=(2, 2, 2, 19, 19, 4, True, None),
    causal_end=(1, 2, 2, 5, 11, 8, True, None),
    longer_keys=(1, 2, 2, 3, 13, 5, False, None),
    shared_heads=(2, 6, 2, 9, 9, 8, True, None),
    boolean=(2, 2, 2, 6, 10, 8, False, "boolean"),
    additive=(2, 4, 1, 5, 7, 8, False, "additive"),
    causal_boolean=(1, 3, 3, 8, 8, 16, True, "boolean"),
)


def make_attention(f):
    for tag, (batch, heads, kv, queries, keys, dim, causal, kind) in ATTENTION.items():
        q, k, v = leaf(f.normal(batch, heads, queries, dim)), leaf(f.normal(batch, kv, keys, dim)), leaf(f.normal(batch, kv, keys, dim))
        d = f.normal(batch, heads, queries, dim)
        bias = torch.zeros(batch, 1, queries, keys).double()
        if causal:  # aligned at the end, unlike is_causal
            bias = bias.masked_fill(torch.ones(queries, keys).tril(keys - queries) == 0, -math.inf)
        if kind == "boolean":
            mask = f.integers(3, batch, 1, queries, keys) > 0
            mask |= torch.eye(queries, keys).bool()  # no empty row
            bias = bias.masked_fill(~mask, -math.inf)
            f.save(f"{tag}.mask", mask)
        if kind == "additive":
            mask = leaf(f.normal(1, heads, queries, keys))
            bias = bias + mask
            f.save(f"{tag}.mask", mask)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
        wrt = dict(dq=q, dk=k, dv=v, **(dict(dmask=mask) if kind == "additive" else {}))
        gradients = dict(zip(wrt, torch.autograd.grad((y * d).sum(), list(wrt.values()))))
        for name, value in dict(q=q, k=k, v=v, d=d, y=y, **gradients).items():
            f.save(f"{tag}.{name}", value)


def make_cross_entropy(f):
    for tag, rows, classes, ignore, scale in (("plain", 11, 37, None, 1.0), ("ignore", 13, 7, 3, 1.0), ("ignore_negative", 9, 33, -100, 1.0), ("steep", 5, 31, None, 100.0)):
        x, target = leaf(f.normal(rows, classes, scale=scale).float().double()), f.integers(classes, rows)
        if ignore is not None:
            target[::3] = ignore
        loss = F.cross_entropy(x, target, ignore_index=-100 if ignore is None else ignore)
        for name, value in dict(x=x, target=target, loss=loss, dx=torch.autograd.grad(loss, x)[0]).items():
            f.save(f"{tag}.{name}", value)


def make_activations(f):
    x = leaf(torch.linspace(-7, 7, 201).double())
    f.save("x", x)
    forms = dict(gelu_erf=F.gelu, gelu_tanh=lambda t: F.gelu(t, approximate="tanh"), silu=F.silu, softplus=F.softplus, sigmoid=torch.sigmoid, tanh=torch.tanh)
    for name, function in forms.items():
        y = function(x)
        f.save(name, y)
        f.save(name + "_grad", torch.autograd.grad(y.sum(), x)[0])


def make_optimizers(f):
    """Applies twelve given gradients, some zero and of very different magnitudes, with each optimizer; stores the parameter after every step."""
    start = f.normal(17)
    grads = f.normal(12, 17) * (10.0 ** torch.linspace(-5, 2, 17).double())
    grads[:, 3] = 0
    grads = grads.float().double()
    rates = (0.05 / (1 + torch.arange(12))).float()
    f.save("start", start)
    f.save("gradients", grads)
    f.save("rates", rates)
    plain = dict(foreach=False, fused=False)
    forms = dict(
        adamw=lambda p: torch.optim.AdamW(p, lr=1.0, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, **plain),
        adam=lambda p: torch.optim.Adam(p, lr=1.0, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01, **plain),
        sgd=lambda p: torch.optim.SGD(p, lr=1.0, **plain),
        momentum=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, weight_decay=0.01, **plain),
        nesterov=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, nesterov=True, weight_decay=0.01, **plain),
    )
    for name, make in forms.items():
        p = leaf(start)
        optimizer = make([p])
        path = []
        for g, rate in zip(grads, rates):
            p.grad = g.clone()
            optimizer.param_groups[0]["lr"] = float(rate)
            optimizer.step()
            path.append(p.detach().clone())
        f.save(name, torch.stack(path))
    parts = [f.normal(3, 5), f.normal(7), f.normal(1, 2, 2)]
    f.save("clip.parts", flat(parts))
    for tag, limit in (("clip.tight", 1.0), ("clip.loose", 100.0)):
        leaves = [leaf(t) for t in parts]
        for t in leaves:
            t.grad = t.detach().clone()
        f.save(tag + ".norm", torch.nn.utils.clip_grad_norm_(leaves, limit))
        f.save(tag, flat([t.grad for t in leaves]))


FIXTURES = dict(
    gpt=lambda f: make_gpt(f, 10),
    gpt_bias=lambda f: make_gpt(f, 10, bias=True),
    gpt_modern=lambda f: make_gpt(f, 0, norm="rms", position="rope", mlp="swiglu", hidden=88, kv_heads=2, tied=False),
    gpt_run=make_gpt_run,
    conv_net=make_conv_net,
    conv1d=make_conv1d,
    norms=make_norms,
    attention=make_attention,
    cross_entropy=make_cross_entropy,
    activations=make_activations,
    optimizers=make_optimizers,
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "tests" / "fixtures")
    parser.add_argument("--only", choices=FIXTURES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, make in FIXTURES.items():
        if options.only in (None, name):
            make(Fixture(options.out, name))
            print(name)


if __name__ == "__main__":
    main()
