"""Where runs are run: on this machine's processes, on a Ray cluster, by SLURM.

An engine takes what is to be done and gives a future for it; one loop (`hearing`) makes results of
futures, in whatever order they come. What is computed never depends on the engine. Knows no kind
of run, and writes no store: its one writer is whoever asks for the results.
"""
