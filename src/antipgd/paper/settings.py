"""What several experiments share: the paper's own settings of its two small problems, names."""

REGRESSION = "quadratic_regression"
REGRESSION_STEPS = 20_000
REGRESSION_SIGMA = 0.05
REGRESSION_RATES = {"gd": 0.1, "pgd": 0.1, "sgd": 0.01, "anti": 0.1}

SENSING = "matrix_sensing"
SENSING_STEPS = 100_000
SENSING_RATE, SENSING_SIGMA, SENSING_BATCH = 0.001, 0.1, 10

# Problems in which a network is trained: the page can show these alone.
NETWORKS = ("network", "one_hidden_unit", "student_teacher", "digits_network", "digits_classifier")
