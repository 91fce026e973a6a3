"""The words of the noise stream as the package's Triton kernel makes them, to be looked at."""

from antipgd.torch.gpu.stream import philox, tl, triton


@triton.jit
def words_kernel(out, place, blocks, SIZE: tl.constexpr):
    key, step, first = tl.load(place), tl.load(place + 1), tl.load(place + 2)
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    w0, w1, w2, w3 = philox(key, step, first + i)
    tl.store(out + 4 * i, w0, mask=i < blocks)
    tl.store(out + 4 * i + 1, w1, mask=i < blocks)
    tl.store(out + 4 * i + 2, w2, mask=i < blocks)
    tl.store(out + 4 * i + 3, w3, mask=i < blocks)
