"""How an agent's format is played: strict, lenient or constrained; slips and hints; forced answers; own prompts."""
