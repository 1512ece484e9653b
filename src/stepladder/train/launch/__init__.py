"""Training in several processes, started by torchrun or `accelerate launch`: what they share and tell each other."""
