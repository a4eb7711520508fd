"""The mathematics alone: a policy, an expertise, a model of how the two make a demonstrator, and their likelihood.

No files, no loops over data, no seeds; every parameter's first axis is `member`.

The joint model is that of Beliaev, Shih, Ermon, Sadigh and Pedarsani, "Imitation Learning by Estimating Expertise of
Demonstrators", ICML 2022. Where a docstring says "the paper", it means this one.
"""
