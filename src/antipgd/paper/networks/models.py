"""The networks of the experiments: ResNet18 for small images, and two small ones for digits.

Weights are a function of the seed: drawn from the noise stream by name, with torch's own bounds
±1/√fan_in, so they depend on no generator, device or version of torch. Knows no data and no noise.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from antipgd.noise import draws

_UNIFORM_BOUND = math.sqrt(3)  # of the law `uniform`, which has standard deviation 1


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm, around them a shortcut (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = _conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                _conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = relu(self.bn1(self.conv1(x)), inplace=True)
        return relu(self.bn2(self.conv2(inner)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    """ResNet18 for small images: a 3×3 stem without pooling, then widths w, 2w, 4w, 8w.

    With w = 64 it is the usual one for CIFAR-10: 11,173,962 parameters.
    """

    def __init__(self, width: int, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3), nn.BatchNorm2d(width)
        stages, inputs = [], width
        for stage in range(4):
            outputs = width * 2**stage
            stages.append(BasicBlock(inputs, outputs, 1 if stage == 0 else 2))
            stages.append(BasicBlock(outputs, outputs, 1))
            inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        return self.linear(self.blocks(x).mean((2, 3)))


class SmallCNN(nn.Module):
    """Two convolutions with BatchNorm, the second with stride 2, then a linear layer."""

    def __init__(self, width: int, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(channels, width, 3), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, 2 * width, 3, 2), nn.BatchNorm2d(2 * width)
        self.linear = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)), inplace=True)
        x = relu(self.bn2(self.conv2(x)), inplace=True)
        return self.linear(x.mean((2, 3)))


class MLP(nn.Module):
    """Two hidden layers of the same width, without BatchNorm."""

    def __init__(self, width: int, inputs: int, classes: int) -> None:
        super().__init__()
        self.hidden1, self.hidden2 = nn.Linear(inputs, width), nn.Linear(width, width)
        self.linear = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.hidden1(x.flatten(1)))
        return self.linear(relu(self.hidden2(x)))


_MAKERS: dict[str, Callable[[int, tuple[int, int, int], int], nn.Module]] = {
    "resnet18": lambda width, shape, classes: ResNet18(width, shape[0], classes),
    "cnn": lambda width, shape, classes: SmallCNN(width, shape[0], classes),
    "mlp": lambda width, shape, classes: MLP(width, math.prod(shape), classes),
}


def _draw_weights(module: nn.Conv2d | nn.Linear, name: str, seed: int) -> None:
    """Uniform within ±1/√fan_in, torch's default for both weights and biases."""
    bound = 1 / math.sqrt(math.prod(module.weight.shape[1:]))
    for part, tensor in module.named_parameters():
        drawn = draws(seed, f"{name}.{part}", 1, 0, tensor.numel(), "uniform", purpose="start")
        values = torch.from_numpy(drawn).view(tensor.shape)
        with torch.no_grad():
            tensor.copy_(values * (bound / _UNIFORM_BOUND))


def make_network(
    model: str, width: int, shape: tuple[int, int, int], classes: int, seed: int
) -> nn.Module:
    """A network for images of `shape` (channels, height, width) with the weights of a seed.

    The global random generator is not touched.
    """
    with torch.device("meta"):
        network = _MAKERS[model](width, shape, classes)
    network = network.to_empty(device="cpu")
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            _draw_weights(module, name, seed)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    return network
