"""Real agents beside real web servers, under a seeded schedule of faults, compared with an independent count.

    make torture SECONDS=900 SEED=3

Enters: a seed and a length. Leaves: `torture-out/SEED` with a verdict, a page with the timeline and, where something was
wrong, every log and state folder. Nothing here imports ELF or the rigs of its tests: agents are processes of the command
`elf`, what they counted is read from watchers' JSON lines and from Parquet files, and the count that it is held against is a
pass of plain Python over logs that were never rotated.
"""
