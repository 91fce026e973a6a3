"""The classifier of classifier.py in Lightning: σ found, noise and best weights by callbacks.

A training without noise finds σ where it ends; then one with it, watched while it trains. What is
validated, averaged and kept as the best is clean.

    pip install '.[flatness,lightning]' scikit-learn
    python examples/lightning_classifier.py            # half a minute on one core
"""

import os
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import antipgd
from antipgd.flatness import trace_at_equal_loss
from antipgd.trainers.lightning import AntiPGD, FlatnessMonitor, SigmaFinder

EPOCHS = int(os.environ.get("EPOCHS", "100"))
BATCH, LR, MOMENTUM = 30, 0.05, 0.9
pixels, digits = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([300, 300, 1197])
training, validation, test = [TensorDataset(pixels[i].float() / 16, digits[i]) for i in order]
warnings.filterwarnings("ignore", ".*does not have many workers")


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.network(images)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.SGD(self.parameters(), LR, MOMENTUM)
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
        return {"optimizer": optimizer, "lr_scheduler": rates}


def fit(name: str, *callbacks: pl.Callback) -> None:
    pl.seed_everything(0, verbose=False)
    best = ModelCheckpoint(f"lightning-{name}", monitor="accuracy", mode="max")
    stop = EarlyStopping("accuracy", mode="max", patience=50)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
        callbacks=[*callbacks, EMAWeightAveraging(decay=0.95), best, stop],
        enable_model_summary=False,
    )  # fmt: skip
    loaders = DataLoader(training, BATCH, shuffle=True), DataLoader(validation, 300)
    trainer.fit(Classifier(), *loaders)
    # Not trainer.test(ckpt_path="best"), which takes the weights before averaging from the file.
    model = Classifier.load_from_checkpoint(best.best_model_path).eval()
    score = (model(test.tensors[0]).argmax(1) == test.tensors[1]).double().mean()
    flat = trace_at_equal_loss(model, [training.tensors], loss=0.1)
    print(f"{name}: test accuracy {score:.1%}, trace at equal loss {flat}", flush=True)


finder = SigmaFinder([training.tensors], lr=LR, momentum=MOMENTUM)
fit("plain", finder)
print(finder.found)
window = antipgd.noise.Window(0, EPOCHS * 300 // BATCH * 5 // 6)
noise = AntiPGD(finder.sigma, schedule=window, seed=0)
monitor = FlatnessMonitor(noise, [training.tensors], every=EPOCHS * 10 // 4)
fit("noise", noise, monitor)
print(*monitor.readings, "one seed decides nothing", sep="\n")
