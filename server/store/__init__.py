"""The database of tenants, keys and the ledger: its tables, its connections, its migrations."""
