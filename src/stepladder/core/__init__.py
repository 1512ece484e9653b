"""What every other package stands on: trajectories, requests, settings, errors, seeds, files and answer metrics."""
