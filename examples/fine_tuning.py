"""Fine-tuning with the Trainer of Hugging Face: one callback is the noise.

A small BERT, made here, learns whether the first half of a sentence comes back as the second; then
it is fine-tuned to another question: whether it comes back in reverse. What is evaluated, kept as
the best and saved is clean.

    pip install '.[transformers]'
    python examples/fine_tuning.py                     # a minute on one core
"""

import copy
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from antipgd.trainers.transformers import AntiPGDCallback

EPOCHS = int(os.environ.get("EPOCHS", "12"))
BERT = BertConfig(vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                  intermediate_size=64, max_position_embeddings=16)  # fmt: skip


class Sentences(Dataset):
    """Sentences of eight words; in half of them the second part is made of the first."""

    def __init__(self, number: int, seed: int, reverse: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(32, (number, 8), generator=generator)
        self.labels = torch.randint(2, (number,), generator=generator)
        first = self.words[:, :4].flip(1) if reverse else self.words[:, :4]
        self.words[:, 4:] = torch.where(self.labels[:, None] == 1, first, self.words[:, 4:])

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    return {"accuracy": float(np.mean(prediction.predictions.argmax(1) == prediction.label_ids))}


def trained(model: nn.Module, reverse: bool, sigma: float) -> Trainer:
    arguments = TrainingArguments(
        "fine-tuning", num_train_epochs=EPOCHS, per_device_train_batch_size=32, seed=0,
        per_device_eval_batch_size=200, learning_rate=2e-3, eval_strategy="epoch",
        save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="accuracy",
        save_total_limit=1, use_cpu=True, report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=Sentences(1000, 0, reverse), compute_metrics=accuracy,
        eval_dataset=Sentences(400, 1, reverse),
        callbacks=[AntiPGDCallback(sigma, relative=True, seed=0)] if sigma else [],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


set_seed(0)
base = trained(BertForSequenceClassification(BERT), reverse=False, sigma=0.0).model
for sigma in (0.0, 0.1):
    trainer = trained(copy.deepcopy(base), reverse=True, sigma=sigma)
    trainer.save_model("fine-tuned")
    score = trainer.evaluate(Sentences(2000, 2, reverse=True))
    print(f"relative sigma {sigma}: test accuracy {score['eval_accuracy']:.1%}")
print("one seed decides nothing; the weights in the folder `fine-tuned` are clean")
