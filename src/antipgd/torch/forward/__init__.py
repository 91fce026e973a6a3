"""Noise only where a parameter is read: w = z + ξ_n inside training passes, z everywhere else.

The parameters are z, always: what is saved, averaged, exported, decayed, stepped is clean. See
`perturbing.perturb` for the one public function.
"""
