"""What the stages of a run spread over the workers of a Ray cluster."""
