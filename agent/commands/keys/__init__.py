"""`elf keys`: the authority of a mesh, and the keys that it issues."""
