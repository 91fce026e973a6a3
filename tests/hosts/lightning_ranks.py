"""Two ranks of Lightning's DDP: alike after each step, and resumed bit for bit. Run by a test."""

import sys
import warnings
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from test_lightning import BATCHES, Network, checkpoints, equal, loader, noise, trainer, values


class Alike(pl.Callback):
    """All ranks have the same weights."""

    def on_train_batch_end(self, trainer, pl_module, *rest):
        own = torch.cat([p.detach().flatten() for p in pl_module.parameters()])
        every = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(every, own)
        assert torch.equal(*every)


def fit(folder, form, *others, resume=None):
    model, callback = Network(), noise(form)
    fitting = trainer(folder, callback, Alike(), *others, strategy="ddp", devices=2)
    fitting.fit(model, loader(), loader(), ckpt_path=resume)
    assert callback.noise.step_count == 2 * BATCHES // 2
    return values(model)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # which the tests in one process look at
    form, folder = sys.argv[1], Path(sys.argv[2])
    whole = fit(folder, form, checkpoints(folder, every_n_epochs=1, filename="{epoch}"))
    assert equal(fit(folder, form, resume=folder / "kept" / "epoch=0.ckpt"), whole)
    print(f"rank {dist.get_rank()} is done")
