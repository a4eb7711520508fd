"""The mathematics: policies, expertise, demonstrator models, and the likelihood of a demonstrator's actions.

No files, no loops over data and no seeds; the first axis of every parameter is `member`.

The joint model is that of Beliaev, Shih, Ermon, Sadigh and Pedarsani, "Imitation Learning by Estimating Expertise of
Demonstrators", ICML 2022, "the paper" in docstrings.
"""
