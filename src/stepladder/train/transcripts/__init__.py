"""Supervised training on transcripts, shared by SFT and RFT."""
