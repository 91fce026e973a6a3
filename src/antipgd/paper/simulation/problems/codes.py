"""The numbers by which compiled code knows problems; a problem names its own without numba."""

KERNELS = (
    "quadratic_regression", "widening_valley", "matrix_sensing", "one_hidden_unit",
    "student_teacher", "digits_network",
)  # fmt: skip
QUADRATIC_REGRESSION, WIDENING_VALLEY, MATRIX_SENSING, ONE_HIDDEN_UNIT = range(4)
STUDENT_TEACHER, DIGITS_NETWORK = 4, 5

ACTIVE = 0.01  # of the largest unit of a network: what counts as active
