"""What was used, by whom, and what it cost: the ledger, the spool that its rows wait in, and reports."""
