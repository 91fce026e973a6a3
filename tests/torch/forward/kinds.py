"""Kinds of module, each with an input: what test_modules.py and test_recompute.py go through."""

import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.checkpoint import checkpoint

KINDS = {}


def kind(make_input):
    """Enter a function that makes a model, under its name."""

    def enter(make):
        KINDS[make.__name__] = (make, make_input)
        return make

    return enter


def numbers(*shape):
    return lambda: (torch.randn(*shape),)


def indices(*shape, below=11):
    return lambda: (torch.randint(0, below, shape),)


def several(*makes):
    return lambda: tuple(value for make in makes for value in make())


class Reads(nn.Module):
    """A module whose forward is a function of itself and the input."""

    def __init__(self, read, **parts):
        super().__init__()
        self.read = read
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args):
        return self.read(self, *args)


def weight(*shape):
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


@kind(numbers(5, 6))
def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3, bias=False))


@kind(several(numbers(5, 4), numbers(5, 3)))
def bilinear():
    return nn.Bilinear(4, 3, 5)


@kind(indices(4, 6))
def embedding():
    return nn.Sequential(nn.Embedding(11, 5, padding_idx=2), nn.Linear(5, 4))


@kind(indices(4, 6))
def sparse_embedding():
    return nn.Sequential(nn.Embedding(11, 5, sparse=True), nn.Linear(5, 4))


@kind(indices(4, 6))
def embedding_bag():
    return nn.EmbeddingBag(11, 5, mode="mean")


@kind(numbers(2, 3, 9))
def conv1d():
    return nn.Sequential(nn.Conv1d(3, 4, 3, padding="same"), nn.ReLU(), nn.Conv1d(4, 2, 3))


@kind(numbers(2, 3, 8, 8))
def conv2d():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, stride=2))


@kind(numbers(2, 2, 5, 5, 5))
def conv3d():
    return nn.Conv3d(2, 3, 3, padding_mode="circular", padding=1)


@kind(numbers(2, 3, 5, 5))
def conv_transpose():
    return nn.Sequential(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.ConvTranspose2d(4, 2, 2))


@kind(numbers(2, 3, 8, 8))
def channels_last():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3)).to(
        memory_format=torch.channels_last
    )


@kind(numbers(2, 4, 8, 8))
def depthwise():
    return nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Conv2d(8, 3, 1))


@kind(numbers(6, 4, 5, 5))
def batch_norm():
    return nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))


@kind(numbers(5, 6))
def layer_norm():
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))


@kind(numbers(3, 6, 7))
def group_norm():
    return nn.Sequential(nn.Conv1d(6, 6, 1), nn.GroupNorm(3, 6))


@kind(numbers(5, 6))
def rms_norm():
    return nn.Sequential(nn.Linear(6, 6), nn.RMSNorm(6))


@kind(numbers(3, 4, 7))
def instance_norm():
    return nn.InstanceNorm1d(4, affine=True, track_running_stats=True)


@kind(numbers(5, 6))
def prelu():
    return nn.Sequential(nn.Linear(6, 6), nn.PReLU(6))


@kind(numbers(3, 5, 8))
def attention():
    part = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
    return Reads(lambda self, x: self.part(x, x, x), part=part)


@kind(several(numbers(3, 5, 8), numbers(3, 4, 6), numbers(3, 4, 7)))
def attention_to_others():
    part = nn.MultiheadAttention(8, 2, kdim=6, vdim=7, batch_first=True)
    return Reads(lambda self, q, k, v: self.part(q, k, v, need_weights=False)[0], part=part)


@kind(numbers(3, 5, 8))
def encoder_layer():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)


@kind(numbers(3, 5, 8))
def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@kind(several(numbers(3, 5, 8), numbers(3, 4, 8)))
def decoder():
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 2)


@kind(several(numbers(3, 5, 8), numbers(3, 4, 8)))
def transformer():
    return nn.Transformer(8, 2, 1, 1, 16, batch_first=True)


@kind(numbers(3, 6, 4))
def rnn():
    return nn.RNN(4, 5, batch_first=True)


@kind(numbers(3, 6, 4))
def lstm():
    return nn.LSTM(4, 5, num_layers=2, bidirectional=True, proj_size=3, dropout=0.2)


@kind(numbers(3, 6, 4))
def gru():
    return nn.GRU(4, 5, num_layers=2, bias=False)


@kind(numbers(3, 4))
def lstm_cell():
    return nn.LSTMCell(4, 5)


@kind(numbers(4, 3, 4))
def gru_cell():
    def unrolled(self, xs):
        h = xs.new_zeros(3, 5)
        for x in xs:
            h = self.cell(x, h)
        return h

    return Reads(unrolled, cell=nn.GRUCell(4, 5))


@kind(numbers(5, 6))
def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, 2))


@kind(numbers(5, 6))
def orthogonal():
    return nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Linear(6, 2))


@kind(numbers(5, 6))
def spectral_norm():
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 4)), nn.Linear(4, 2))


class LowRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = weight(2, 6), weight(4, 2)

    def forward(self, whole):
        return whole + self.up @ self.down


@kind(numbers(5, 6))
def low_rank_parametrization():
    model = nn.Linear(6, 4)
    register_parametrization(model, "weight", LowRank())
    return model


@kind(numbers(5, 6))
def pruned():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    prune.l1_unstructured(model[0], "weight", 0.4)
    return model


@kind(numbers(5, 6))
def used_twice():
    return Reads(lambda self, x: self.part(self.part(x).tanh()), part=nn.Linear(6, 6))


@kind(numbers(5, 6))
def used_three_times():
    return Reads(
        lambda self, x: self.part(self.part(self.part(x).tanh()).tanh()), part=nn.Linear(6, 6)
    )


@kind(indices(4, 6))
def tied_by_two_modules():
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False))
    model[2].weight = model[0].weight
    return model


@kind(indices(4, 6))
def tied_by_function():
    return Reads(
        lambda self, i: linear(self.mid(self.e(i)), self.e.weight),
        e=nn.Embedding(11, 6), mid=nn.Linear(6, 6),
    )  # fmt: skip


@kind(numbers(5, 6))
def parameter_list():
    def through(self, x):
        for one in self.ws:
            x = (x @ one).tanh()
        return x @ self.ws[0]

    return Reads(through, ws=nn.ParameterList([weight(6, 6) for _ in range(3)]))


@kind(numbers(5, 6))
def parameter_dict():
    def through(self, x):
        for one in self.ws.values():
            x = x @ one
        return x + self.ws["b"].sum()

    return Reads(through, ws=nn.ParameterDict({"a": weight(6, 6), "b": weight(6, 6)}))


@kind(numbers(5, 6))
def own_weights():
    return Reads(
        lambda self, x: (x @ self.w + self.scalar) * self._parameters["w"].sum(),
        w=weight(6, 4), scalar=nn.Parameter(torch.tensor(0.3)),
    )  # fmt: skip


@kind(numbers(5, 6))
def called_past_its_hooks():
    return Reads(lambda self, x: self.part.forward(x), part=nn.Linear(6, 3))


@kind(numbers(5, 6))
def gradient_inside():
    """A forward that differentiates: the force of an energy."""

    def force(self, x):
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(self.part(x).square().sum(), x, create_graph=True)[0]

    return Reads(force, part=nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)))


def blocks(*modes):
    """Three blocks with dropout, each under checkpoint(use_reentrant=mode) unless that is None."""

    def through(self, x):
        for block, mode in zip(self.blocks, modes, strict=True):
            x = block(x) if mode is None else checkpoint(block, x, use_reentrant=mode)
        return x

    def block():
        return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 6))

    return Reads(through, blocks=nn.ModuleList([block() for _ in modes]))


@kind(numbers(5, 6))
def checkpoint_reentrant():
    return blocks(None, True, True)


@kind(numbers(5, 6))
def checkpoint_non_reentrant():
    return blocks(False, False, None)


def around(mode):
    def through(self, x):
        return checkpoint(lambda y: self.part(y) @ self.w, self.first(x), use_reentrant=mode)

    return Reads(through, first=nn.Linear(6, 6), part=nn.Linear(6, 5), w=weight(5, 3))


@kind(numbers(5, 6))
def checkpoint_of_a_function():
    """Its recomputation reads self.w in the backward pass, outside any module's call."""
    return around(False)


@kind(numbers(5, 6))
def reentrant_checkpoint_of_a_function():
    return around(True)
