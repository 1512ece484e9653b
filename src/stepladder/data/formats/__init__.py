"""Published question formats, one file per format."""
