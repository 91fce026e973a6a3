"""The fight: who wins where, at equal budgets.

A contestant is a file of some twenty lines (`methods`), a `Problem` is what it is tried on, a
`Bout` one training of the one on the other. Everything else is bookkeeping that other rooms do.
Needs the `network` extra.
"""
