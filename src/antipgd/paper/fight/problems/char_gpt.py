"""A GPT of 1.2 million parameters that reads the tales of `tales`, character by character.

Written out over one flat vector of weights: pre-norm, learned positions, no dropout. An example is
a text of its own from the beginning of a tale on; there are so few that they are learnt by heart.
Losses are in nats a character; what a perfect reader would have is `floor`. Attention is spelled
out, for torch's fused one cannot be differentiated twice, as a trace needs.
"""

import math
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear

from antipgd.noise import draws
from antipgd.paper.fight.problem import LOSS, TEST, Sizes
from antipgd.paper.fight.problems.tales import ALPHABET, FIRST, SECOND, Grammar, tell

CONTEXT, WIDTH, LAYERS, HEADS = 128, 160, 4, 5
EXAMPLES, HELD_OUT = 256, 64
BATCH, STEPS = 8, 800
SIZES = {
    "char_gpt": Sizes(
        "char_gpt",
        "a GPT of 1.2 million parameters on the characters of made-up tales",
        kind=LOSS, examples=EXAMPLES, batch=BATCH, full_batch=BATCH, steps=STEPS, lr=2e-3,
        momentum=0.9, optimizer="adamw", network=True, seconds=0.15, judging=55.0,
    )
}  # fmt: skip


def _layer(number: int) -> list[tuple[str, tuple[int, ...]]]:
    shapes = {
        "norm1.weight": (WIDTH,), "attention.weight": (3 * WIDTH, WIDTH),
        "joined.weight": (WIDTH, WIDTH), "norm2.weight": (WIDTH,),
        "hidden.weight": (4 * WIDTH, WIDTH), "hidden.bias": (4 * WIDTH,),
        "out.weight": (WIDTH, 4 * WIDTH), "out.bias": (WIDTH,),
    }  # fmt: skip
    return [(f"layers.{number}.{name}", shape) for name, shape in shapes.items()]


LAYOUT: list[tuple[str, tuple[int, ...]]] = [
    ("characters.weight", (len(ALPHABET), WIDTH)),
    ("places.weight", (CONTEXT, WIDTH)),
    *(part for number in range(LAYERS) for part in _layer(number)),
    ("norm.weight", (WIDTH,)),
    ("head.weight", (len(ALPHABET), WIDTH)),
]
_SIZES = [math.prod(shape) for _, shape in LAYOUT]


def _parts(w: Tensor) -> dict[str, Tensor]:
    """Views by name: autograd joins their gradients in one copy."""
    split = w.split(_SIZES)
    return {name: part.view(shape) for (name, shape), part in zip(LAYOUT, split, strict=True)}


def _attend(x: Tensor, p: dict[str, Tensor], at: str) -> Tensor:
    n, places, _ = x.shape
    joint = linear(x, p[at + "attention.weight"]).view(n, places, 3, HEADS, WIDTH // HEADS)
    q, k, v = joint.permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
    later = torch.ones(places, places, dtype=torch.bool).triu(1)
    seen = scores.masked_fill(later, -math.inf).softmax(-1) @ v
    return linear(seen.transpose(1, 2).reshape(n, places, WIDTH), p[at + "joined.weight"])


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return layer_norm(x, (WIDTH,), weight)


def predict(w: Tensor, characters: Tensor, embedding_noise: Tensor | None = None) -> Tensor:
    """Logits of the next character at each place, (texts, places, characters)."""
    p = _parts(w)
    x = p["characters.weight"][characters] + p["places.weight"][: characters.shape[1]]
    if embedding_noise is not None:
        x = x + embedding_noise
    for number in range(LAYERS):
        at = f"layers.{number}."
        x = x + _attend(_norm(x, p[at + "norm1.weight"]), p, at)
        inner = linear(
            _norm(x, p[at + "norm2.weight"]), p[at + "hidden.weight"], p[at + "hidden.bias"]
        )
        x = x + linear(gelu(inner), p[at + "out.weight"], p[at + "out.bias"])
    return linear(_norm(x, p["norm.weight"]), p["head.weight"])


def _first(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """A tensor of the start: norms 1, biases 0, embeddings .02, matrices 1/√fan_in, those that
    write into the stream of the layers smaller by √(2 · layers)."""
    if len(shape) == 1:
        return torch.full(shape, 1.0 if "norm" in name else 0.0)
    drawn = draws(seed, name, 1, 0, math.prod(shape), purpose="start")
    scale = 0.02 if name.startswith(("characters", "places")) else shape[1] ** -0.5
    if ".joined." in name or ".out." in name:
        scale /= math.sqrt(2 * LAYERS)
    return scale * torch.from_numpy(drawn)


class CharGPT:
    """The problem of a seed: its texts and its start."""

    layout = LAYOUT
    outputs = len(ALPHABET)
    predictions = CONTEXT
    """Of an example."""
    embedded = (CONTEXT, WIDTH)
    """Shape of a text's embeddings, for methods that add noise to them."""

    def __init__(self, seed: int, held_out: str = TEST, grammar: Grammar = FIRST) -> None:
        self.sizes, self._seed, self._held_out, self._grammar = (
            SIZES["char_gpt"],
            seed,
            held_out,
            grammar,
        )
        self._train, _ = self._texts("train", EXAMPLES)
        self._held, self.floor = self._texts(held_out, HELD_OUT)

    def _texts(self, part: str, count: int) -> tuple[Tensor, float]:
        """Characters by number, (texts, CONTEXT + 1), and their floor in nats a character."""
        told = [tell(self._grammar, self._seed, f"{part}/{i}", CONTEXT + 1) for i in range(count)]
        numbers = [[ALPHABET.index(character) for character in text] for text, _ in told]
        return torch.tensor(numbers), float(np.mean([nats for _, nats in told])) / CONTEXT

    @cached_property
    def _start(self) -> Tensor:
        return torch.cat([_first(name, shape, self._seed).reshape(-1) for name, shape in LAYOUT])

    def start(self) -> Tensor:
        """The flat weights of the seed, a fresh copy."""
        return self._start.clone()

    def logits(self, w: Tensor, rows: Tensor | None = None) -> Tensor:
        """Of training texts, classes second: (texts, characters, places)."""
        texts = self._train if rows is None else self._train[rows]
        return predict(w, texts[:, :-1]).transpose(1, 2)

    def labels(self, rows: Tensor | None = None) -> Tensor:
        """The characters that came next, (texts, places)."""
        texts = self._train if rows is None else self._train[rows]
        return texts[:, 1:]

    def loss(
        self, w: Tensor, rows: Tensor | None = None, embedding_noise: Tensor | None = None
    ) -> Tensor:
        """The training loss in nats a character, as torch differentiates it."""
        texts = self._train if rows is None else self._train[rows]
        return _mean_loss(predict(w, texts[:, :-1], embedding_noise), texts)

    def gradient(
        self,
        w: Tensor,
        rows: Tensor | None = None,
        label_noise: Tensor | None = None,
        embedding_noise: Tensor | None = None,
    ) -> Tensor:
        """The flat gradient; `embedding_noise` of shape (rows, CONTEXT, WIDTH) is for NEFTune."""
        if label_noise is not None:
            raise ValueError("char_gpt has no label noise: its labels are its own inputs")
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self.loss(w, rows, embedding_noise), w)[0]

    @torch.no_grad()
    def score(self, w: Tensor) -> dict[str, float]:
        """Held-out loss and share of characters that were right; training loss of as many texts."""
        logits = predict(w, self._held[:, :-1])
        right = logits.argmax(-1) == self._held[:, 1:]
        known = self._train[:HELD_OUT]
        return {
            "test_loss": float(_mean_loss(logits, self._held)),
            "accuracy": float(right.double().mean()),
            "train_loss": float(_mean_loss(predict(w, known[:, :-1]), known)),
        }

    def second_task(self) -> "CharGPT":
        """Tales in another grammar: other words, verbs first, differences for sums."""
        return CharGPT(self._seed, self._held_out, SECOND)

    def checksum(self) -> str:
        """A digest of the texts."""
        data = torch.cat([self._train, self._held]).numpy().tobytes()
        return blake2b(data, digest_size=16).hexdigest()


def _mean_loss(logits: Tensor, texts: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())


def make(name: str, seed: int, held_out: str = TEST) -> CharGPT:
    """The problem of a seed."""
    return CharGPT(seed, held_out)
