"""The contestants that ship, a file each, written as anybody's own would be.

A file has a docstring (its first line is what tables call it), `GRADIENTS` a step, `GRID` (the
values of the one thing that it tunes), `step(bout, w)`, which returns the next weights, and
perhaps `ORDER` of its batches, `TUNES` (what the grid is of; "rate" is the learning rate itself),
`PROBLEMS` (their names, if it is made for some) and `final(bout, w)`, the weights to be judged.
`docs/fight.md` has one to copy.
"""
