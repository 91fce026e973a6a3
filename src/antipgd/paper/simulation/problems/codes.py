"""The numbers by which compiled code knows problems; a problem names its own without numba."""

KERNELS = ("quadratic_regression", "widening_valley", "matrix_sensing", "one_hidden_unit")
QUADRATIC_REGRESSION, WIDENING_VALLEY, MATRIX_SENSING, ONE_HIDDEN_UNIT = range(len(KERNELS))
