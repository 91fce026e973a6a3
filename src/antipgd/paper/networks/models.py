"""The networks of the experiments: ResNet18 for small images, and three small ones.

Weights are a function of the seed: drawn from the noise stream by name, with torch's own bounds
±1/√fan_in, so they depend on no generator, device or version of torch. Without norms nothing
repairs the scale of a layer, so convolutions have bounds that keep it, or begin at zero. Knows no
data and no noise.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from antipgd.noise import draws

_UNIFORM_BOUND = math.sqrt(3)  # of the law `uniform`, which has standard deviation 1
_MOST_GROUPS = 8
_RELU_GAIN = math.sqrt(6)  # He et al., 2015: with it a ReLU layer keeps E x²


def groups_of(channels: int) -> int:
    """How many groups GroupNorm makes of them: the most that divide them, 8 at most, of at least
    two channels each (a channel of one pixel, alone, would always be normalised to zero)."""
    most = max(1, min(_MOST_GROUPS, channels // 2))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(groups_of(channels), channels),
    "none": lambda channels: nn.Identity(),  # the convolution has the bias
}


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int, norm: str
) -> tuple[nn.Conv2d, nn.Module]:
    """A convolution and the norm after it; without norm the bias is the convolution's own."""
    bias = norm == "none"
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
    return conv, _NORMS[norm](outputs)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with norms, around them a shortcut (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, outputs, 3, stride, norm)
        self.conv2, self.bn2 = _conv(outputs, outputs, 3, 1, norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_conv(inputs, outputs, 1, stride, norm))

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.bn1(self.conv1(x)), inplace=True)
        return relu(self.bn2(self.conv2(inner)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """ResNet18 for small images: a 3×3 stem without pooling, then widths w, 2w, 4w, 8w.

    With w = 64 it is the usual one for CIFAR-10: 11,173,962 parameters.
    """

    def __init__(self, width: int, channels: int, classes: int, norm: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3, 1, norm)
        stages, inputs = [], width
        for stage in range(4):
            outputs = width * 2**stage
            stages.append(BasicBlock(inputs, outputs, 1 if stage == 0 else 2, norm))
            stages.append(BasicBlock(outputs, outputs, 1, norm))
            inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        return self.linear(self.blocks(x).mean((2, 3)))


class SmallCNN(nn.Module):
    """Two convolutions with norms, the second with stride 2, then a linear layer."""

    def __init__(self, width: int, channels: int, classes: int, norm: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3, 1, norm)
        self.conv2, self.bn2 = _conv(width, 2 * width, 3, 2, norm)
        self.linear = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        x = relu(self.bn2(self.conv2(x)), inplace=True)
        return self.linear(x.mean((2, 3)))


class LeNet(nn.Module):
    """Two convolutions with norms and stride 2, then a hidden layer: fits what it is shown."""

    def __init__(self, width: int, shape: tuple[int, int, int], classes: int, norm: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(shape[0], width, 3, 2, norm)
        self.conv2, self.bn2 = _conv(width, 2 * width, 3, 2, norm)
        pixels = -(-shape[1] // 4) * -(-shape[2] // 4)
        self.hidden = nn.Linear(2 * width * pixels, 4 * width)
        self.linear = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        x = relu(self.bn2(self.conv2(x)), inplace=True)
        return self.linear(relu(self.hidden(x.flatten(1))))


class MLP(nn.Module):
    """Two hidden layers of the same width, without norms."""

    def __init__(self, width: int, inputs: int, classes: int) -> None:
        super().__init__()
        self.hidden1, self.hidden2 = nn.Linear(inputs, width), nn.Linear(width, width)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.hidden1(x.flatten(1)))
        return self.linear(relu(self.hidden2(x)))


_MAKERS: dict[str, Callable[[int, tuple[int, int, int], int, str], nn.Module]] = {
    "resnet18": lambda width, shape, classes, norm: ResNet18(width, shape[0], classes, norm),
    "cnn": lambda width, shape, classes, norm: SmallCNN(width, shape[0], classes, norm),
    "lenet": lambda width, shape, classes, norm: LeNet(width, shape, classes, norm),
    "mlp": lambda width, shape, classes, norm: MLP(width, math.prod(shape), classes),
}


def _gains(module: nn.Conv2d | nn.Linear, name: str, norm: str) -> tuple[float, float]:
    """The bounds of a layer's weights and biases in units of torch's, 1/√fan_in.

    Without norms: what keeps E x² through a ReLU; a block's last convolution, the last layer and
    all biases begin at zero (Zhang et al., 2019, "Fixup"), so that depth multiplies nothing and the
    first steps do not throw the features away.
    """
    if norm != "none":
        return 1.0, 1.0
    last = name == "linear" or (name.startswith("blocks.") and name.endswith(".conv2"))
    return (0.0 if last else _RELU_GAIN), 0.0


def _draw_weights(
    module: nn.Conv2d | nn.Linear, name: str, seed: int, gains: tuple[float, float]
) -> None:
    """Uniform within ±gain/√fan_in, of weights and of biases; torch's default are gains of 1."""
    bound = 1 / math.sqrt(math.prod(module.weight.shape[1:]))
    for part, tensor in module.named_parameters():
        drawn = draws(seed, f"{name}.{part}", 1, 0, tensor.numel(), "uniform", purpose="start")
        values = torch.from_numpy(drawn).view(tensor.shape)
        scale = bound * gains[part != "weight"] / _UNIFORM_BOUND
        with torch.no_grad():
            tensor.copy_(values * scale)


def make_network(
    model: str,
    width: int,
    shape: tuple[int, int, int],
    classes: int,
    seed: int,
    norm: str = "batch",
) -> nn.Module:
    """A network for images of `shape` (channels, height, width) with the weights of a seed.

    `norm` is batch, group or none; an mlp has none whatever it says. The global random generator is
    not touched.
    """
    with torch.device("meta"):
        network = _MAKERS[model](width, shape, classes, norm)
    network = network.to_empty(device="cpu")
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            _draw_weights(module, name, seed, _gains(module, name, norm))
        elif isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
            module.reset_parameters()
    return network
