"""What compiled steps are made of: loops over the weights of eight runs that lie side by side.

See `problems.products` for the layout. Knows no problem and no order of steps.
"""

import numpy as np

from antipgd.compiling import jit_with
from antipgd.noise import kernels as noise
from antipgd.noise import stream, transforms
from antipgd.paper.simulation import directions
from antipgd.paper.simulation.blocks import LANES
from antipgd.paper.simulation.directions import ADAM, EPS, FIRST, MOMENTUM, SECOND

jit = jit_with(noise, stream, transforms, directions)

_LARGEST = np.finfo(np.float64).max


@jit
def _spread(n, xi, mask, start, out):
    """A draw into all lanes, zero where the mask is."""
    noise.not_inlined()
    for j in range(n):
        for lane in range(LANES):
            out[LANES * (start + j) + lane] = xi[j] * mask[start + j]


@jit
def spread_coefficients(n, coefficients, out):
    """A coefficient for each lane, for all weights."""
    noise.not_inlined()
    for j in range(n):
        for lane in range(LANES):
            out[LANES * j + lane] = coefficients[lane]


@jit
def set_product(n, a, b, out):
    """out = a · b."""
    noise.not_inlined()
    noise.widest_vectors()
    for i in range(n):
        out[i] = a[i] * b[i]


@jit
def add_product(n, a, b, out):
    """out += a · b."""
    noise.not_inlined()
    noise.widest_vectors()
    for i in range(n):
        out[i] += a[i] * b[i]


@jit
def move(n, w, eta, g, eps, out):
    """out = w − η g + ε; returns how many elements are not finite."""
    noise.not_inlined()
    noise.widest_vectors()
    bad = 0
    for i in range(n):
        x = w[i] - eta[i] * g[i] + eps[i]
        out[i] = x
        bad += 0 if abs(x) <= _LARGEST else 1
    return bad


@jit
def _zero_lane(lane, out):
    for j in range(out.shape[0] // LANES):
        out[LANES * j + lane] = 0


@jit
def freeze(lane, w, alive, eta, taps, frozen):
    """Put a lane's weights aside. It goes on at zero, with no step and no noise."""
    for j in range(w.shape[0] // LANES):
        frozen[lane, j] = w[LANES * j + lane]
    _zero_lane(lane, w)
    _zero_lane(lane, eta)
    taps[:, lane] = 0
    alive[lane] = False


@jit
def look(n, low, high, watched, w, alive, eta, taps, frozen, left_at):
    """Freeze the lanes whose watched quantity is not inside the open interval."""
    for lane in range(LANES):
        if alive[lane] and not low < watched[lane] < high:
            left_at[lane] = n
            freeze(lane, w, alive, eta, taps, frozen)


@jit
def lose(n, new, w, alive, eta, taps, frozen, diverged_at):
    """Freeze the lanes of which something in `new` is not finite."""
    for lane in range(LANES):
        lost = False
        for j in range(w.shape[0] // LANES):
            lost = lost or not abs(new[LANES * j + lane]) <= _LARGEST
        if lost and alive[lane]:
            diverged_at[lane] = n
            freeze(lane, w, alive, eta, taps, frozen)
        if lost:
            _zero_lane(lane, new)


@jit
def any_of(flags):
    """Whether a flag is set in any lane."""
    for lane in range(LANES):
        if flags[lane]:
            return True
    return False


@jit
def choose(indices, matrix, vector, chosen, labels):
    """The examples of a mini-batch."""
    for i in range(indices.shape[0]):
        labels[i] = vector[indices[i]]
        for j in range(matrix.shape[1]):
            chosen[i, j] = matrix[indices[i], j]


@jit
def _differs_along(lane, total, first, g):
    """⟨total, first − g⟩ of a lane."""
    product = 0.0
    for j in range(total.shape[0]):
        product += total[j] * (first[j] - g[LANES * j + lane])
    return product


@jit
def balance(place, lane, g, order, following, total, first):
    """What `balancing.PairBalance.show` does with the gradient of a lane."""
    pair, last = place // 2, order.shape[0] - 1
    if place % 2 == 0:
        for j in range(first.shape[0]):
            first[j] = g[LANES * j + lane]
        following[pair] = order[place]
        return
    ahead = _differs_along(lane, total, first, g) <= 0
    for j in range(total.shape[0]):
        difference = first[j] - g[LANES * j + lane]
        total[j] += difference if ahead else -difference
    following[pair] = order[place - 1 if ahead else place]
    following[last - pair] = order[place if ahead else place - 1]


@jit
def shift_labels(n, labelled, sigma, draws, shift):
    """What is added to the labels: zero in lanes whose labels stay."""
    scale = labelled * sigma
    for i in range(n):
        for lane in range(LANES):
            shift[LANES * i + lane] = scale[lane] * draws[LANES * i + lane]


@jit
def squared_norms(g, norms):
    """Sums of squares by lane."""
    norms[:] = 0
    for j in range(g.shape[0] // LANES):
        for lane in range(LANES):
            norms[lane] += g[LANES * j + lane] * g[LANES * j + lane]


@jit
def draw_into(key, number, law, mask, words, signs, xi, out):
    """Draw `number` of a stream into all lanes of `out`, times the mask."""
    for start in range(0, mask.shape[0], noise.CHUNK):
        n = min(noise.CHUNK, mask.shape[0] - start)
        noise.draw_chunk(key, number, start, n, law, words, signs, xi)
        _spread(n, xi, mask, start, out)


@jit
def draw_signed(key, draw, pairs, law, mask, negative, words, signs, xi, out):
    """ξ_draw; in pairs, ξ_{2k} is −ξ_{2k−1}, ± the k-th of the stream: `negative` is −mask."""
    if not pairs:
        draw_into(key, draw, law, mask, words, signs, xi, out)
    elif draw % 2 == 0:
        draw_into(key, draw // 2, law, negative, words, signs, xi, out)
    else:
        draw_into(key, (draw + 1) // 2, law, mask, words, signs, xi, out)


@jit
def _heavy_ball(n, beta, nesterov, v, g):
    noise.not_inlined()
    noise.widest_vectors()
    for i in range(n):
        faster = beta[i] * v[i] + g[i]
        ahead = g[i] + beta[i] * faster
        v[i] = faster
        g[i] = ahead if nesterov[i] != 0 else faster


@jit
def _adam(n, correction, root, m, s, g):
    noise.not_inlined()
    noise.widest_vectors()
    for i in range(n):
        m[i] += (1 - FIRST) * (g[i] - m[i])
        s[i] = SECOND * s[i] + (1 - SECOND) * (g[i] * g[i])
        g[i] = m[i] / correction / (np.sqrt(s[i]) / root + EPS)


@jit
def direct(kind, beta, nesterov, memory, powers, g):
    """Make a direction of the gradient `g`, in place; `memory` and `powers` go on by a step."""
    if kind == MOMENTUM:
        _heavy_ball(g.shape[0], beta, nesterov, memory[0], g)
    elif kind == ADAM:
        powers[0] *= FIRST
        powers[1] *= SECOND
        _adam(g.shape[0], 1 - powers[0], np.sqrt(1 - powers[1]), memory[0], memory[1], g)


@jit
def forget(alive, memory):
    """Lanes that have left the finite numbers remember nothing."""
    for row in range(memory.shape[0]):
        for lane in range(LANES):
            if not alive[lane]:
                for j in range(memory.shape[1] // LANES):
                    memory[row, LANES * j + lane] = 0
