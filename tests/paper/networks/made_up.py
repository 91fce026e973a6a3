"""Records of trainings that nobody trained, for tests of what is said of them."""

from dataclasses import replace

from antipgd.paper.networks.scales import EXTENSION, TUNING_SEED
from antipgd.paper.networks.spec import MEASURES, make_training, trace_at
from antipgd.paper.record import Record

END, NOISY = 4, 2  # epochs, and the last of them with noise


def row(epoch, place, **values):
    return (epoch, place, *(values.get(measure) for measure in MEASURES))


def record(method="anti", batch=70, seed=0, points=(), **changes):
    settings = {"sigma": 0.1, "noise_stop": NOISY} if method not in ("gd", "sgd") else {}
    run = make_training("digits", "cnn", method, batch=batch, epochs=END, seed=seed,
                        **{**settings, **changes})  # fmt: skip
    return Record(run, "ok", None, None, tuple(points), {}, None, None)


def tuned(method, value, accuracy, field="sigma", seed=TUNING_SEED, batch=70, **changes):
    """A training to choose by: its accuracy on held-out images at the end."""
    points = [row(END, "w_bn", test_accuracy=accuracy)]
    return record(method, batch, seed, points, validation=True, **{field: value}, **changes)


def measured(accuracy, loss, right, trace):
    """What is measured at one place. Traces at other losses than 0.01 are in the opposite order, so
    that whoever takes them is found out; none where an image is wrong."""
    found = {"test_accuracy": accuracy, "train_loss": loss, "train_accuracy": right,
             "test_loss": 1.0, "trace": 1.0, "scaled_trace": 1.0}  # fmt: skip
    if right == 1:
        found |= {trace_at(0.1): 1 / trace, trace_at(0.01): trace, trace_at(0.001): 1 / trace}
    return found


def trained(method="anti", seed=0, batch=70, *, accuracy=0.5, loss=0.001, right=1.0, trace=4.0,
            norm="batch", **changes):  # fmt: skip
    """It ends with these numbers. Where the noise ends, its accuracy is ten points less at z, and
    thirty at w, where its loss is large."""
    made = record(method, batch, seed, norm=norm, **changes)
    bn = "_bn" if norm == "batch" else ""
    points = [row(END, f"w{bn}", **measured(accuracy, loss, right, trace))]
    if made.run.sigma:
        points += [row(NOISY, f"w{bn}", **measured(accuracy - 0.3, 1.0, 0.5, trace))]
        if made.run.has_clean_weights:
            points += [row(NOISY, f"z{bn}", **measured(accuracy - 0.1, loss, right, trace))]
    return replace(made, points=tuple(sorted(points, key=lambda one: one[0])))


def gone_on(record, *, accuracy=0.5, loss=0.001, right=1.0, trace=4.0):
    """The extension of a training, which ends with these numbers."""
    run = record.run.extended(EXTENSION)
    place = record.points[-1][1]
    return replace(record, run=run, points=(
        *record.points, row(run.epochs, place, **measured(accuracy, loss, right, trace))
    ))  # fmt: skip
