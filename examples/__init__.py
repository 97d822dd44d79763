"""Runnable examples; each folder is one."""
