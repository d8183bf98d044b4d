"""How a database comes to have the tables of this version: one step a file in `versions/`, run in order by `run.py`.

A step that has been released never changes; a change of `tables.py` is a new step, and `HEAD` names the last one. Steps add
columns and tables only, so that replicas of the version before go on working beside those of this one.
"""

from __future__ import annotations

from typing import Final

HEAD: Final = "0001"
"""The last step. A database that is there needs no migration, and Alembic, which takes half a second to import, is not loaded."""
