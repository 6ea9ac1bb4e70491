"""A journal of compiled kernels, and the command that shows it, for attnloom."""
