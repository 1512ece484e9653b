"""What every server of Stepladder has in front: a gate, limits on clients, counters, a good end."""
