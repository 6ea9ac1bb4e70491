"""Packed documents that do not see each other, for attnloom."""
