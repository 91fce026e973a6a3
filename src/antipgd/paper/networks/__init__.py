"""Networks that are trained: the only room of the paper that may import torch.

Needs the `network` extra.
"""
