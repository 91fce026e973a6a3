"""AdamW: the base where a problem has it, itself (Loshchilov & Hutter, 2019, arXiv 1711.05101)."""

GRADIENTS = 1
TUNES = "rate"
GRID = (0.25, 0.5, 1.0, 2.0, 4.0)
PROBLEMS = ("char_gpt",)


def step(bout, w):
    return bout.descend(w, bout.gradient(w))
