"""The objects of the Python API: runs and policies to look at, ask and evaluate (`import stepladder as sl`)."""
