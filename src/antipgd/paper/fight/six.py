"""Who fights where a training is dear: six methods a problem, fixed before any was run there.

Each set has the base by itself, Anti-PGD on it, and what costs two gradients a step (SAM, two-point
noise): these four answer whether anticorrelated noise does for one gradient what others do for two.
The last two are what people of the field would use instead: for images weight decay and averages of
weights, for text Muon (another optimizer) and NEFTune (noise elsewhere).
"""

IMAGES = ("sgd", "anti_sgd", "sam", "two_point", "sgd_weight_decay", "sgd_ema")
TEXT = ("adamw", "anti_sgd", "sam", "two_point", "muon", "neftune")
"""`anti_sgd` is anticorrelated noise on mini-batches of the base, which is AdamW here."""
