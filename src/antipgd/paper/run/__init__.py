"""How runs are carried out: each way is a map from specs to records as they finish."""
