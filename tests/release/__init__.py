"""Lakes of the releases, and how they go on under this one."""
