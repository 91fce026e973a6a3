"""The benchmark of both forms: the networks it times are there, with the sizes that it says."""

import pytest
import torch

import forms


@pytest.mark.parametrize(("kind", "millions"), [("resnet18", 11.17), ("gpt", 10.07)])
def test_its_networks_train(kind: str, millions: float) -> None:
    model, x, y = forms.network(kind)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)
    few = (2, 2) if kind == "resnet18" else (1, x.shape[1])
    loss = forms.loss_of(model, x[: few[0]], y[: few[1]])
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in model.parameters())
