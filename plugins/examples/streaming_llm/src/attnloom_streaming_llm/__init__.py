"""StreamingLLM: the first tokens and a window, for attnloom."""
