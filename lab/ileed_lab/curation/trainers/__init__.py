"""Other projects' trainers: programs that run where such a project is installed, and need no ileed.

Each is run as `python -m trainers.NAME FOLDER --seed S` by the Python of the project's own environment, with the folder
that holds this package on the path; see `answering`.
"""
