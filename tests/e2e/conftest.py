"""The command line, for every test of whole programs."""

from tests.support.shell import shell

__all__ = ["shell"]
