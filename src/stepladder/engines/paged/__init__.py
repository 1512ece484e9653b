"""Generation on a GPU with a paged KV cache, CUDA graphs and Triton kernels."""
