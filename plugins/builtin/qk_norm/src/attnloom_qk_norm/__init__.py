"""RMS norm over each query and key row, as in Qwen 3."""
