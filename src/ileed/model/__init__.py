"""The mathematics alone: a policy, an expertise, a model of how the two make a demonstrator, and their likelihood.

No files, no loops over data, no seeds; every parameter's first axis is `member`.
"""
