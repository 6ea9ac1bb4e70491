"""attnloom."""
