"""`elf lake`: what is in a lake, and its care."""
