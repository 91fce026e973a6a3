"""SGD + EMA: judged is the exponential mean of the weights (Polyak and Juditsky, 1992; Izmailov et
al., 2018, arXiv 1803.05407). Its length is a share of the steps."""

GRADIENTS = 1
TUNES = "length / steps"
GRID = (0.003, 0.01, 0.03, 0.1, 0.3)


def step(bout, w):
    w = bout.descend(w, bout.gradient(w))
    mean = bout.state.setdefault("mean", w.clone())
    mean.lerp_(w, 1 / min(bout.n, 1 + bout.value * bout.steps))
    return w


def final(bout, w):
    return bout.state["mean"]
