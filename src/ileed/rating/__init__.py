"""The likelihood of demonstrated steps as a function of expertise, and the ratings that follow from it.

It knows models and data, not fits, files, reports or commands.
"""
