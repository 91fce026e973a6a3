"""LoRA with noise on the frozen base: adapters learn beside weights that are never quite still.

The base knows one language, adapters learn another. `frozen=` names weights that take noise though
nothing trains them. The base stays as it was, and what is merged at the end is clean.

    pip install '.[torch]' transformers peft
    python examples/lora.py                            # half a minute on one core
"""

import copy
import os

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import antipgd.torch

STEPS = int(os.environ.get("STEPS", "150"))
GPT2 = GPT2Config(vocab_size=16, n_positions=24, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
                  eos_token_id=0)  # fmt: skip
LORA = LoraConfig(r=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)


def sentences(language: int, seed: int, number: int = 16) -> torch.Tensor:
    """A word is three times the one before, plus a number that is the language; some are random."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(16, (24, number), generator=generator)
    random = torch.rand(24, number, generator=generator) < 0.1
    words = [drawn[0]]
    for place in range(1, 24):
        words.append(torch.where(random[place], drawn[place], (3 * words[-1] + language) % 16))
    return torch.stack(words, dim=1)


def train(model: nn.Module, language: int, sigma: float = 0.0) -> None:
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=0.01)
    if sigma:
        antipgd.torch.perturb(
            model, optimizer, sigma, relative=True, seed=0,
            frozen="*base_layer.weight", exclude="*lora_*",
        )  # fmt: skip
    for step in range(STEPS):
        words = sentences(language, seed=step)
        optimizer.zero_grad()
        model.train()(words, labels=words).loss.backward()
        optimizer.step()


@torch.no_grad()
def loss(model: nn.Module, language: int) -> float:
    words = sentences(language, seed=10**6, number=200)
    return model.eval()(words, labels=words).loss.item()


torch.manual_seed(0)
base = GPT2LMHeadModel(GPT2)
train(base, language=0)
print(f"base: loss {loss(base, 0):.4f} on its own language, {loss(base, 5):.4f} on the new one")
for sigma in (0.0, 0.1):
    torch.manual_seed(1)
    adapted = get_peft_model(copy.deepcopy(base), LORA)
    train(adapted, language=5, sigma=sigma)
    measured = loss(adapted, 5)
    merged = adapted.merge_and_unload()
    print(f"relative sigma {sigma} on the base: loss {measured:.4f}, merged {loss(merged, 5):.4f}")
base.save_pretrained("base")
merged.save_pretrained("merged")
print("one seed decides nothing; the weights in the folder `merged` are clean")
