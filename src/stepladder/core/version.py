"""The version of Stepladder."""

__version__ = "0.2.0"
