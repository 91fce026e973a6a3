"""The methods that are compared, each said once: its noise, its gradient, its place in a picture.

The only list of methods there is. The simulator and the networks each take those they can do.
"""

from dataclasses import dataclass

from antipgd.noise.taps import ANTI, WHITE, Taps


@dataclass(frozen=True)
class Method:
    """One method. `taps` are those of its noise on the weights, empty without any.

    `batches`: its gradient is that of a mini-batch. `labels`: there is noise on the labels.
    `gradient` is "plain" where it is taken at the weights, "sam" at the top of SAM's ascent,
    "two_point" the mean of those at z ± ξ, "trace_penalty" that of L + σ²/2 · tr H. `compared`: an
    arm of the network experiments at any scale.
    """

    legend: str
    colour: str
    taps: Taps = ()
    batches: bool = False
    labels: bool = False
    gradient: str = "plain"
    simulated: bool = True
    trained: bool = True
    compared: bool = True

    @property
    def draws(self) -> bool:
        """Whether it has noise: on the weights, on the labels, or where its gradients are taken."""
        return bool(self.taps) or self.labels or self.gradient in ("two_point", "trace_penalty")

    @property
    def has_sigma(self) -> bool:
        """Whether it takes a strength: of its noise, or the radius of its ascent."""
        return self.draws or self.gradient != "plain"


METHODS = {
    "gd": Method("GD", "#6b6b6b"),
    "sgd": Method("SGD", "#c27c00", batches=True),
    "pgd": Method("PGD", "#c2402a", WHITE),
    "anti": Method("Anti-PGD", "#1f6fb4", ANTI),
    "antisgd": Method("Anti-SGD", "#17968a", ANTI, batches=True),
    "label": Method("label noise", "#7a4fa3", labels=True),
    "noise": Method("noise", "#b0568f", ANTI, compared=False),  # of any taps
    "sam": Method("SAM", "#8a6d3b", gradient="sam"),
    "two_point": Method("two-point", "#3d7a3f", gradient="two_point", compared=False),
    "trace_penalty": Method("trace penalty", "#9a7fc6", gradient="trace_penalty", simulated=False,
                            compared=False),
}  # fmt: skip
SIMULATED = {name: method for name, method in METHODS.items() if method.simulated}
"""The methods that a sweep knows, by name: `antipgd.paper.METHODS`."""
TRAINABLE = {name: method for name, method in METHODS.items() if method.trained}
TRAINED = {name: method for name, method in TRAINABLE.items() if method.compared}
