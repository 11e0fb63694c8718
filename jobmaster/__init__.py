"""What a job is and what its master does. Enters: SQL and merged rows. Leaves: windows with status and revision.

May import srt and cbt.
"""
