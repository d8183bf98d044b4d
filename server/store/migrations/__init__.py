"""How a database comes to have the tables of this version: one step a file in `versions/`, run in order by `run.py`.

A step that has been released never changes; a change of `tables.py` is a new step. Steps add columns and tables only, so that
replicas of the version before go on working beside those of this one.
"""
