"""The process reward model as a step scorer."""
