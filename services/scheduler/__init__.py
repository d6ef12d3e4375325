"""The cluster scheduler: grants, runs and the ledger of each fleet; see README.md."""
