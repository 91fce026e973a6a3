"""`antipgd train`: every option arrives in the training; bad ones end before anything begins."""

import pytest

from antipgd.cli import main
from antipgd.paper.networks.spec import make_training

BASE = ["train", "--data", "digits", "--images", "100", "--width", "2", "--batch", "50",
        "--epochs", "2", "--measure-every", "2"]  # fmt: skip
SAME = {"images": 100, "width": 2, "batch": 50, "epochs": 2, "seed": 0, "measure": (0, 2)}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("anti --sigma 0.01 --norm group --loss squared", {"norm": "group", "loss": "squared"}),
        ("anti --sigma 0.01 --norm none --form forward", {"norm": "none", "form": "forward"}),
        ("anti --sigma 0.01 --schedule step:1:0.5 --warmup 1 --augment flip_crop",
         {"schedule": "step:1:0.5", "warmup": 1, "augment": "flip_crop"}),
        ("noise --sigma 0.01 --taps 1,-0.5 --ema 0.9", {"taps": (1, -0.5), "ema": 0.9}),
        ("noise --sigma 0.01 --taps -1,1 --noisy no_norms", {"taps": (-1, 1),
                                                             "noisy": "no_norms"}),
        ("two_point --sigma 0.01 --law rademacher", {"law": "rademacher"}),
        ("trace_penalty --sigma 0.01 --stop-at-loss 0.5", {"stop_at_loss": 0.5}),
    ],
)  # fmt: skip
def test_options_are_those_of_a_training(options, settings, tmp_path):
    method, *rest = options.split()
    assert main([*BASE, "--method", method, *rest, "--out", str(tmp_path)]) == 0
    run = make_training("digits", "cnn", method, sigma=0.01, **SAME, **settings)
    assert [path.name for path in tmp_path.iterdir()] == [run.name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("anti --sigma 0.01 --norm layer", "unknown norm 'layer'"),
        ("anti --sigma 0.01 --loss hinge", "unknown loss 'hinge'"),
        ("anti --sigma 0.01 --schedule linear", "unknown schedule 'linear'"),
        ("anti --sigma 0.01 --taps 1,-0.5", "taps are for method 'noise'"),
        ("noise --sigma 0.01 --taps 1,x", "--taps takes numbers such as --taps=1,-0.9; got '1,x'"),
        ("pgd --sigma 0.01 --form forward", "form 'forward' needs taps that sum to zero"),
        ("gd --ema 2", "ema must be a finite number >= 0 and < 1; got 2.0"),
        ("gd --augment crop", "unknown augment 'crop'"),
        ("two_point", "method 'two_point' needs sigma > 0"),
        ("gd --sigma 0.1", "--sigma changes nothing with --method gd --optimizer sgd: leave it"),
        ("gd --form forward", "--form changes nothing with --method gd"),
        ("sam --sigma 0.1 --relative", "--relative changes nothing with --method sam"),
        ("sam --sigma 0.1 --noisy no_norms", "--noisy changes nothing with --method sam"),
        ("gd --momentum 0.5 --optimizer adamw", "--momentum changes nothing with --method gd"),
    ],
)
def test_refusals_come_before_anything_is_written(options, message, tmp_path, capsys):
    method, *rest = options.split()
    assert main([*BASE, "--method", method, *rest, "--out", str(tmp_path / "new")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
