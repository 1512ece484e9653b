"""Indexes that others have built: FAISS files with the corpus they were made of."""
