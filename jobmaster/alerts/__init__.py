"""Alerts of a job, pure: windows and their rows in, transitions of alerts out (pending, firing, resolved).

The job's log keeps the states (`elf.jobmaster.log`), its master decides when a window is judged
(`elf.jobmaster.master.alerting`). May import `windows`, `compile`, `functions`, `plan`, `values`, `srt` and `cbt`."""
