"""What can be wrong with the store. No errors of a request: whoever needs the store decides what becomes of them.

    StoreError
    ├── StoreAwayError     it can't be reached, or can't do anything now; the same may work later
    ├── StoreUnusableError what its URL names is no store, and can't become one by waiting
    └── StoreVersionError  a newer version of the gateway has changed it

Messages name the store without its password.
"""

from __future__ import annotations


class StoreError(Exception):
    """Base of all."""


class StoreAwayError(StoreError):
    """The database can't be reached, is locked, full, or shutting down. Nothing was written."""


class StoreUnusableError(StoreError):
    """A file that is no database, a folder, or a place where this process may make no file."""


class StoreVersionError(StoreError):
    """The database has tables that this version does not know."""
