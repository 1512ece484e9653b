"""Questions and corpora: the embedded fictional world, and files of the usual layouts."""
