"""One's own training function over σ, learning rates, seeds and whatever else it takes.

The function is named `module:function`, takes its settings as keyword arguments and returns a
dictionary of numbers. What it does is its own affair.
"""
