"""What a job is and what its master does. Enters: SQL and merged rows. Leaves: windows with status and revision.

May import srt and cbt. Pure too, but for the file of records (journal) and the process in which SQL is compiled (query).
"""
