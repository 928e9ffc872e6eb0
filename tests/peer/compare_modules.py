#!/usr/bin/env python3
"""Models that load PyTorch's state dicts strictly, beside PyTorch: outputs, gradients and buffers after a step, in f64.

    python3 tests/peer/compare_modules.py --program build/.../tests/peer_modules [--filter REGEX]

A difference is relative to the largest number of its tensor, or to a thousandth of the model's largest gradient where
that is more: some gradients are 0 but for rounding. Above 1e-9 the exit status is 1.
Needs torch on the CPU; `ninja -C BUILD tests/peer_modules` builds the program.
"""
import argparse, os, re, subprocess, sys, tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from compare_ops import load, save


class Bottleneck(nn.Module):
    def __init__(self, n_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or n_in != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, 4 * width, 1, stride, bias=False),
                                            nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + (self.downsample(x) if self.downsample else x))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)

        def layer(n_in, width, blocks, stride):
            return nn.Sequential(*(Bottleneck(n_in if i == 0 else 4 * width, width, stride if i == 0 else 1)
                                   for i in range(blocks)))
        self.layer1 = layer(64, 64, 3, 1)
        self.layer2 = layer(256, 128, 4, 2)
        self.layer3 = layer(512, 256, 6, 2)
        self.layer4 = layer(1024, 512, 3, 2)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, x):
        y = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(y)))).mean((2, 3)))


def two_convolutions(n_in, out):
    parts = []
    for n in (n_in, out):
        parts += [nn.Conv2d(n, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.bottom = two_convolutions(3, 8), two_convolutions(8, 16), two_convolutions(16, 16)
        self.up2, self.up1 = two_convolutions(32, 8), two_convolutions(16, 8)
        self.head = nn.Conv2d(8, 2, 1)
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        d = self.up2(torch.cat([b, self.upsample(c)], 1))
        return self.head(self.up1(torch.cat([a, self.upsample(d)], 1)))


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(40, 32), nn.Embedding(30, 32)
        self.transformer = nn.Transformer(32, 4, 2, 2, 64, 0.0, batch_first=True)
        self.head = nn.Linear(32, 30)

    def forward(self, source, target, padding):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.float64)
        y = self.transformer(self.source(source), self.target(target), tgt_mask=mask, src_key_padding_mask=padding,
                             memory_key_padding_mask=padding)
        return self.head(y)


class LlamaBlock(nn.Module):
    width, heads, groups, hidden = 32, 8, 2, 48

    def __init__(self):
        super().__init__()
        head = self.width // self.heads
        self.input_layernorm = nn.RMSNorm(self.width, eps=1e-5)
        self.post_attention_layernorm = nn.RMSNorm(self.width, eps=1e-5)
        self.q_proj = nn.Linear(self.width, self.heads * head, bias=False)
        self.k_proj = nn.Linear(self.width, self.groups * head, bias=False)
        self.v_proj = nn.Linear(self.width, self.groups * head, bias=False)
        self.o_proj = nn.Linear(self.heads * head, self.width, bias=False)
        self.gate_proj = nn.Linear(self.width, self.hidden, bias=False)
        self.up_proj = nn.Linear(self.width, self.hidden, bias=False)
        self.down_proj = nn.Linear(self.hidden, self.width, bias=False)

    @staticmethod
    def rotate(x):
        n, d = x.shape[-2], x.shape[-1]
        angle = torch.arange(n, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, d, 2).double() / d)
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :d // 2], x[..., d // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, x):
        h = self.input_layernorm(x)
        heads = lambda t: t.view(t.shape[0], t.shape[1], -1, self.width // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(self.rotate(heads(self.q_proj(h))), self.rotate(heads(self.k_proj(h))),
                                           heads(self.v_proj(h)), is_causal=True, enable_gqa=True)
        z = x + self.o_proj(y.transpose(1, 2).flatten(2))
        n = self.post_attention_layernorm(z)
        return z + self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, (h, c) = self.lstm(packed)
        y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        return torch.cat([self.head(y).flatten(1), h.transpose(0, 1).flatten(1), c.transpose(0, 1).flatten(1)], 1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(1, 8, 4, 2, 1))
        self.conv2 = spectral_norm(nn.Conv2d(8, 16, 4, 2, 1))
        self.fc = spectral_norm(nn.Linear(16 * 4 * 4, 1))

    def score(self, x):
        return self.fc(F.leaky_relu(self.conv2(F.leaky_relu(self.conv1(x), .2)), .2).flatten(1))

    def forward(self, real, fake, share):
        between = torch.lerp(real, fake, share).detach().requires_grad_()
        slope, = torch.autograd.grad(self.score(between).sum(), between, create_graph=True)
        penalty = ((slope.flatten(1).norm(2, 1) - 1) ** 2).mean()
        return self.score(fake).mean() - self.score(real).mean() + 10 * penalty


def normal(*shape):
    return torch.randn(shape, dtype=torch.float64)


def tokens(high, *shape):
    return torch.randint(high, shape)


MODELS = {
    "resnet50": (ResNet50, lambda: [normal(2, 3, 64, 64)]),
    "unet": (UNet, lambda: [normal(2, 3, 20, 28)]),
    "translator": (Translator, lambda: [tokens(40, 3, 9), tokens(30, 3, 7),
                                        torch.arange(9)[None] >= torch.tensor([[9], [4], [6]])]),
    "llama_block": (LlamaBlock, lambda: [normal(2, 11, 32)]),
    "lstm": (Reader, lambda: [normal(4, 9, 6), torch.tensor([5, 9, 1, 7])]),
    "wgan_critic": (Critic, lambda: [normal(5, 1, 16, 16), normal(5, 1, 16, 16), torch.rand(5, 1, 1, 1).double()]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--filter", default="")
    options = parser.parse_args()
    worst = 0
    for name, (make, inputs) in MODELS.items():
        if not re.search(options.filter, name):
            continue
        torch.manual_seed(1)
        model = make().double()
        with torch.no_grad():
            for p in model.parameters():  # norms and biases that are not 1 and 0
                if p.ndim == 1:
                    p.add_(.1 * torch.randn_like(p))
        state = {k: v.clone() for k, v in model.state_dict().items()}
        x = inputs()
        tracked = [t.clone().requires_grad_() if t.is_floating_point() else t for t in x]
        y = model(*tracked)
        seed = normal(*y.shape)
        y.backward(seed)
        expected = {"y": y.detach()}
        expected.update({k: p.grad for k, p in model.named_parameters() if p.grad is not None})
        expected.update({"state." + k: b for k, b in model.named_buffers()})
        expected.update({f"d{i}": t.grad for i, t in enumerate(tracked) if getattr(t, "grad", None) is not None})
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, n) for n in ("state", "inputs", "results")]
            save(paths[0], state, {})
            save(paths[1], {**{f"x{i}": t for i, t in enumerate(x)}, "g": seed}, {})
            subprocess.run([options.program, name, *paths], check=True)
            got, _ = load(paths[2])
        if got.keys() != expected.keys():
            sys.exit(f"{name}: only one side has {sorted(got.keys() ^ expected.keys())}")
        most = 0
        floor = 1e-3 * max(g.abs().max().item() for key, g in expected.items() if not key.startswith("state."))
        for key, want in expected.items():
            difference = (got[key].double() - want.double()).abs().max().item() if want.numel() else 0
            most = max(most, difference / max(want.double().abs().max().item(), floor))
        worst = max(worst, most)
        print(f"{name}: {len(expected)} tensors, {len(state)} of the state dict, largest difference {most:.1e}")
    sys.exit(1 if not worst < 1e-9 else 0)


if __name__ == "__main__":
    main()
