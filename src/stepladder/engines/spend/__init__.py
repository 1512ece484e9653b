"""Spending limits of models behind servers: prices, the ledger of a folder, its cached responses."""
