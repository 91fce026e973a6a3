"""What the training of a network is: data × model × method × seed × epochs, as plain values.

As a `Run` it is named by the hash of its canonical JSON, and its result is a function of it alone.
Its record counts in epochs. Knows no torch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from antipgd.checks import number, one_of, whole
from antipgd.noise.laws import as_law
from antipgd.noise.taps import Taps, telescopes
from antipgd.paper.methods import TRAINABLE
from antipgd.paper.networks import accepted
from antipgd.paper.networks.data import DATA_SETS
from antipgd.paper.networks.rates import checked_schedule, checked_warmup
from antipgd.paper.record import Point, canonical, name_of

# Raise one when a change to networks or training (or to how barriers are measured) changes results:
# stored records are stale then.
TRAINING_VERSION = 2
BARRIER_VERSION = 2

EQUAL_LOSSES = (0.1, 0.01, 0.001)  # of training, at which scaled traces are compared


def trace_at(loss: float) -> str:
    """The measure that is the scaled trace where T·logits have this training loss."""
    return f"trace_at_{loss:g}"


MEASURES = (
    "train_loss", "train_accuracy", "test_loss", "test_accuracy", "trace", "trace_sem",
    "scaled_trace", "scaled_trace_sem", "norm", "barrier", *map(trace_at, EQUAL_LOSSES),
    "temperature", "effective",
)  # fmt: skip
PLACES = ("w", "z", "w_bn", "z_bn", "running", "ema")


@dataclass(frozen=True)
class Training:
    """One training. Make it with `make_training`, which says what the fields mean."""

    data: str
    model: str
    width: int
    method: str
    batch: int
    epochs: int
    seed: int
    measure: tuple[int, ...]
    images: int | None = None
    size: int | None = None
    optimizer: str = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0
    micro: int | None = None
    sigma: float = 0.0
    law: str = ""
    relative: bool = False
    noise_start: int = 0
    noise_stop: int | None = None
    noisy: str = "all"
    validation: bool = False
    held_out: int = 0
    test_images: int | None = None
    trace_images: int = 0
    trace_probes: int = 0
    flatness_images: int = 0
    barriers: bool = False
    running: bool = True
    extends: int = 0
    channels_last: bool = True
    bf16: bool = False
    norm: str = "batch"
    loss: str = "cross_entropy"
    schedule: str = "constant"
    warmup: int = 0
    augment: str = "none"
    stop_at_loss: float | None = None
    colour: Taps = ()
    form: str = "weights"
    ema: float = 0.0

    # What a store and a table ask of any run

    problem = "network"
    measures = MEASURES
    places = PLACES
    relax = False

    def canonical(self) -> str:
        """As JSON with one spelling, the text its name is the hash of."""
        return canonical(self)

    @cached_property
    def name(self) -> str:
        """32 hexadecimal digits."""
        return name_of(self.canonical())

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "Training":
        """A training from its parsed JSON."""
        tuples = {name: tuple(values.get(name, ())) for name in ("measure", "colour")}
        return cls(**{**values, **tuples})

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """None: all that can be varied is a field."""
        return ()

    @property
    def versions(self) -> dict[str, int]:
        """The versions of the code that the result depends on."""
        barriers = {"barriers": BARRIER_VERSION} if self.barriers else {}
        return {"training": TRAINING_VERSION, **barriers}

    @property
    def steps(self) -> int:
        """What the record counts in: epochs."""
        return self.epochs

    @property
    def taps(self) -> Taps:
        """The colour of the noise on the weights, empty without any."""
        return self.colour or TRAINABLE[self.method].taps

    @property
    def has_clean_weights(self) -> bool:
        """Whether z exists: there is no noise on the weights, or its taps sum to zero."""
        return not self.taps or telescopes(self.taps)

    @property
    def ema_age(self) -> float:
        """The mean age in steps of the weights in the average, d/(1 − d) for the decay d."""
        return float(f"{self.ema / (1 - self.ema):.6g}")

    # When things happen

    @property
    def averaged(self) -> bool:
        """Whether it is the average of the weights that is judged, and that ends it."""
        return self.ema > 0

    def stops_at(self, points: Iterable[Point], epoch: int) -> bool:
        """Whether it ends after this epoch, of which these are the points: the loss is reached."""
        if self.stop_at_loss is None or epoch == 0:
            return False
        rows = [row for row in points
                if row[0] == epoch and row[1] != "running"
                and (row[1] == "ema") == self.averaged]  # fmt: skip
        return bool(rows) and rows[-1][2 + MEASURES.index("train_loss")] <= self.stop_at_loss

    def noise_acts(self, epoch: int) -> bool:
        """Whether this epoch, counted from 1, has noise (or corrupted labels, or SAM's ascent)."""
        last = self.epochs if self.noise_stop is None else self.noise_stop
        return self.sigma > 0 and self.noise_start < epoch <= last

    @property
    def tuned_on(self) -> bool:
        """Whether its images for testing are of the training set: it serves to choose settings."""
        return self.validation or bool(self.held_out)

    def measured_fully(self, epoch: int) -> bool:
        """Whether all images are used at a measured epoch: where the noise begins, where it is
        taken out, at the end, and at that of the training which this one extends; everywhere if
        any of them may be the end."""
        return self.stop_at_loss is not None or epoch in accepted.turns(
            self.epochs, self.noise_start, self.noise_stop, self.extends
        )

    def extended(self, epochs: int) -> "Training":
        """The same training, going on for so many noise-free epochs after its end."""
        if self.schedule == "cosine" or (self.sigma and self.noise_stop is None):
            raise ValueError(
                "what depends on the end of a training cannot be extended: a cosine schedule, or "
                "noise that is left on"
            )
        end = self.epochs + epochs
        return replace(self, epochs=end, extends=self.epochs, measure=(*self.measure, end))

    def prefix(self) -> "Training | None":
        """The training that this one begins with: of which it is an extension, or without noise;
        others may begin with it too.

        None also where the learning rate depends on how long the training is.
        """
        if self.extends:
            return replace(
                self, epochs=self.extends, extends=0,
                measure=tuple(epoch for epoch in self.measure if epoch <= self.extends),
            )  # fmt: skip
        if not self.noise_start or self.schedule == "cosine":
            return None
        return replace(
            self, method="gd", epochs=self.noise_start, sigma=0.0, law="", relative=False,
            noise_start=0, noise_stop=None, noisy="all", barriers=False, colour=(), form="weights",
            measure=tuple(epoch for epoch in self.measure if epoch <= self.noise_start),
        )  # fmt: skip


def make_training(
    data: str,
    model: str,
    method: str,
    *,
    batch: int,
    epochs: int,
    seed: int,
    images: int | None = None,
    size: int | None = None,
    width: int | None = None,
    optimizer: str = "sgd",
    lr: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    micro: int | None = None,
    sigma: float = 0.0,
    law: str = "gaussian",
    relative: bool = False,
    noise_start: int = 0,
    noise_stop: int | None = None,
    noisy: str = "all",
    validation: bool = False,
    held_out: int = 0,
    measure: Iterable[int] = (),
    test_images: int | None = None,
    trace_images: int = 0,
    trace_probes: int = 0,
    flatness_images: int = 0,
    barriers: bool = False,
    running: bool = True,
    channels_last: bool = True,
    bf16: bool = False,
    norm: str = "batch",
    loss: str = "cross_entropy",
    schedule: str = "constant",
    warmup: int = 0,
    augment: str = "none",
    stop_at_loss: float | None = None,
    taps: Iterable[float] | None = None,
    form: str = "weights",
    ema: float = 0.0,
) -> Training:
    """A training with defaults filled in, in the one spelling that its name depends on.

    - `data`: a name of `data.DATA_SETS`; `images`: how many for training, as many of every class,
      drawn by the seed (None: all); `size`: side of the images, each pixel a mean (None: as they
      are).
    - `model`: resnet18, cnn, lenet, mlp; `width`: channels of the first stage, or hidden units.
      `norm`: batch, group or none (`models` says how each begins); an mlp has none: for it batch,
      the default, and none are the same. `loss`: cross_entropy or squared (½‖f − y‖², y one-hot).
    - `method`: a name of `methods.TRAINABLE`. What makes gd of sgd is `batch` alone.
      `sigma`: standard deviation of the noise on the weights; for label the probability that a
      label is replaced by a uniform one, anew in every epoch; for sam the radius ρ of its ascent.
      two_point takes the mean of the gradients at z + ξ and z − ξ, trace_penalty the gradient of
      L + σ²/2 · tr H, by one probe of signs a step. `taps`: those of method noise, (1, −0.5) say.
    - `batch`: images per step. An epoch has ⌊images / batch⌋ steps in a fresh order; what remains
      is left out, so that all steps are alike. `micro`: a batch is computed in parts of this size,
      each with BatchNorm statistics of its own, as on several GPUs (7500 = 5 × 1500).
    - `noise_start`, `noise_stop`: the noise acts in epochs start < e ≤ stop (None: to the end).
      After `noise_stop` the draw is taken out of the weights, where taps allow it. `relative`:
      sigma is in units of each tensor's root mean square when the noise begins. `noisy`: all
      weights, or no_norms for all but those of norms. `form`: weights (they carry the noise), or
      forward (they are z, and training passes read w).
      `ema`: decay a step of an average of the weights, measured at the place "ema" (0: none).
    - `validation`: a fifth of every class of the training images is held out, and is what stands
      for the test images. `held_out`: so many others do, of the training images that `images`
      leaves, as many of every class, drawn by the seed.
    - `measure`: epochs after which it is measured; those where the noise begins and ends, and the
      last, always are. `test_images`: how many images of training and test each are used at the
      others (None: all). `trace_images`, `trace_probes`: images and random vectors for the trace
      of the Hessian (0: no trace). `flatness_images`: images for flatness at minima,
      measured where all images are used: scaled traces at equal training losses by temperature,
      with as many vectors, None where no temperature gives that loss; for the squared loss
      effective sharpness at this learning rate. `barriers`: the loss barrier between the weights
      where the noise begins and the clean ones of each measured epoch after. `running`: keep the
      mean loss and accuracy of every epoch's batches.
    - `stop_at_loss`: the training ends after the first measured epoch whose training loss is at
      most this, on all images (then used at every measured epoch), at the cleanest weights with
      statistics of their own, or at their average if there is one (`ema`); the running mean would
      be late, and noisy. Traces are then measured where it ends, and nowhere else. With 0 it goes
      on to its last epoch.
    - `schedule` and `warmup` epochs of the learning rate, as `rates` has them; `augment`: none,
      flip, or flip_crop, as `augmenting` has them.
    - `optimizer`: sgd or adamw. `channels_last`, `bf16` (autocast): how it is computed. A machine
      that announces AMX but does not allow it kills bf16 with SIGILL, unless the variable
      ONEDNN_MAX_CPU_ISA is AVX512_CORE_BF16 or less.
    """
    one_of("data", data, DATA_SETS)
    one_of("model", model, accepted.WIDTHS)
    one_of("method", method, TRAINABLE)
    epochs, batch = whole("epochs", epochs, 1), whole("batch", batch, 1)
    images, micro = accepted.maybe("images", images, 1), accepted.maybe("micro", micro, 1)
    accepted.check_images(data, images, batch, micro)
    strength = accepted.strength_of(method, sigma)
    noise_start = whole("noise_start", noise_start, 0) if strength else 0
    noise_stop = accepted.maybe("noise_stop", noise_stop, 1) if strength else None
    accepted.check_window(epochs, noise_start, noise_stop)
    stop = None if noise_stop == epochs else noise_stop
    measured = accepted.checked_measure(measure, epochs)
    trace_images, trace_probes = accepted.checked_trace(trace_images, trace_probes)
    kind, colour = TRAINABLE[method], accepted.colour_of(method, taps)
    on_weights, drawn = bool(kind.taps), kind.gradient in accepted.DRAWN
    if relative and drawn:
        raise ValueError(f"relative is for noise on the weights; got it for method {method!r}")
    return Training(
        data=data,
        model=model,
        width=whole("width", accepted.WIDTHS[model] if width is None else width, 1),
        method=method,
        batch=batch,
        epochs=epochs,
        seed=whole("seed", seed, 0),
        measure=tuple(sorted(measured | accepted.turns(epochs, noise_start, stop))),
        images=images,
        size=accepted.maybe("size", size, 1),
        optimizer=one_of("optimizer", optimizer, accepted.OPTIMIZERS),
        lr=number("lr", lr, 0, above=True),
        momentum=number("momentum", momentum, 0, 1) if optimizer == "sgd" else 0.9,
        weight_decay=number("weight_decay", weight_decay, 0),
        micro=None if micro == batch else micro,
        sigma=strength,
        law=str(as_law(law)) if on_weights or kind.gradient == "two_point" else "",
        relative=bool(relative) and on_weights,
        noise_start=noise_start,
        noise_stop=stop,
        noisy=one_of("noisy", noisy, accepted.NOISY) if on_weights or drawn else "all",
        validation=bool(validation),
        held_out=accepted.checked_held_out(data, images, held_out, validation),
        test_images=accepted.maybe("test_images", test_images, 1),
        trace_images=trace_images,
        trace_probes=trace_probes,
        flatness_images=accepted.checked_flatness(flatness_images, trace_probes),
        barriers=bool(barriers),
        running=bool(running),
        channels_last=bool(channels_last),
        bf16=bool(bf16),
        norm=accepted.norm_of(model, norm),
        loss=one_of("loss", loss, accepted.LOSSES),
        schedule=checked_schedule(schedule, epochs),
        warmup=checked_warmup(warmup, epochs),
        augment=one_of("augment", augment, accepted.AUGMENTATIONS),
        colour=colour,
        form=accepted.form_of(form, colour or kind.taps),
        ema=number("ema", ema, 0, 1),
        stop_at_loss=None if stop_at_loss is None else number("stop_at_loss", stop_at_loss, 0),
    )
