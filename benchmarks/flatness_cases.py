"""Half-trained networks on made-up images: what flatness is measured of in the benchmarks.

The images are smooth random fields, a tenth of the labels is wrong, and training stops after a few
dozen steps: the Hessian is that of a network on its way, neither a random nor a finished one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from antipgd.paper.networks.models import make_network

CLASSES = 10


@dataclass(frozen=True)
class Case:
    model: str
    width: int
    images: int
    side: int
    steps: int
    lr: float
    group: int  # products for which ours shares a graph where seconds per product are measured
    columns: int  # that curvlinops multiplies at once
    samples: int  # of the reference

    def data(self) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(0)

        def smooth(count: int, coarse: int) -> Tensor:
            grid = torch.randn(count, 3, coarse, coarse, generator=draw)
            return interpolate(grid, size=self.side, mode="bicubic")

        labels = torch.arange(self.images) % CLASSES
        images = 0.5 * smooth(CLASSES, 4)[labels] + smooth(self.images, 4)
        images += 0.5 * smooth(self.images, 8)
        wrong = torch.rand(self.images, generator=draw) < 0.1
        others = torch.randint(CLASSES, (self.images,), generator=draw)
        return images, torch.where(wrong, others, labels)

    def network(self) -> nn.Module:
        """In evaluation mode, untrained."""
        return make_network(self.model, self.width, (3, self.side, self.side), CLASSES, 0).eval()

    def train(self, network: nn.Module) -> None:
        images, labels = self.data()
        optimizer = torch.optim.SGD(network.parameters(), lr=self.lr, momentum=0.9)
        network.train()
        for step in range(self.steps):
            batch = torch.arange(128 * step, 128 * (step + 1)) % self.images
            optimizer.zero_grad()
            cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
        optimizer.zero_grad()
        network.eval()


CASES = {
    "ResNet18, width 8": Case("resnet18", 8, 512, 16, 30, 0.05, group=16, columns=4, samples=192),
    "MLP": Case("mlp", 684, 512, 16, 30, 0.02, group=16, columns=4, samples=512),
    "ResNet18, width 64": Case("resnet18", 64, 32, 32, 0, 0.0, group=4, columns=1, samples=0),
}
