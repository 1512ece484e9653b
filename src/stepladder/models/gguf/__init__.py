"""Models in GGUF files, converted to safetensors."""
