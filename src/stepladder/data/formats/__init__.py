"""Formats of question files: one module per format, which declares it as `FORMAT`.

Adding a format, or a published question set in a new format, means adding a file here.
"""
