"""How the noise stream agrees between libraries, in numbers: `make agreement`.

For every law and several keys, steps and offsets: words and draws of each library against the
NumPy reference, counted bit by bit, and the largest distance in ulp.
"""

from antipgd.noise import as_law, stream_key
from stream_backends import BACKENDS, LAWS, compare, has

PLACES = [  # (step, first block)
    (1, 0),
    (7, 5),
    (2**32 + 3, 2**32 - 100),
]
BLOCKS = 2**18


def main() -> None:
    titles = ("words differ", "draws differ", "max ulp", "over 4")
    print(f"{'library':8} {'law':14} {titles[0]:>17} {titles[1]:>17} {titles[2]:>8} {titles[3]:>7}")
    for backend in list(BACKENDS)[1:]:
        for name in (law for law in LAWS if has(backend, law)):
            law = as_law(name)
            blocks = BLOCKS if backend != "triton" else 2**12  # an interpreter
            blocks = blocks // 32 if name == "rademacher" else blocks
            results = [
                compare(backend, stream_key(seed, "w"), step, first, blocks, law)
                for seed, (step, first) in enumerate(PLACES)
            ]
            words, draws, ulp, far = zip(*results, strict=True)
            total = len(PLACES) * blocks
            print(
                f"{backend:8} {name:14} {sum(words):>7} / {4 * total:<7} "
                f"{sum(draws):>7} / {law.per_block * total:<7} {max(ulp):>8} {sum(far):>7}",
                flush=True,
            )


if __name__ == "__main__":
    main()
