"""The theorems of the paper, executable, each with its condition."""
